//! Outcome of a step, from which the step record and all decisions are derived.

use lambert_config::run::Guard;

use super::sample_position::{self, StepSamples};
use crate::objective::totals::ObjectiveTotals;
use crate::recovery::guard::GuardVerdict;
use crate::state::TrainState;

/// Outcome of a step, which is equal on all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutcome {
    pub stage: String,
    /// Number of steps completed before this step.
    pub steps_before: u64,
    /// Epoch of the first sample of each dataset in the batch; the largest of them.
    pub epoch: u64,
    /// Number of samples in the global batch.
    pub samples: u64,
    /// Number of tokens in the global batch, without padding.
    pub tokens: u64,
    /// Padding tokens in the micro-batches of all ranks.
    pub padding: u64,
    /// Ratio of the largest number of tokens on a rank to the mean number over the ranks. Padding counts.
    pub imbalance: f64,
    /// Samples that the step drew.
    pub drawn: StepSamples,
    /// Learning rate of the update.
    pub learning_rate: f64,
    /// Totals over all ranks.
    pub totals: ObjectiveTotals,
    /// L2 norm of the gradient over all ranks, before clipping.
    pub norm: f64,
}

impl StepOutcome {
    /// Total loss, nats.
    pub fn loss(&self) -> f64 {
        self.totals.total_loss()
    }

    /// Gradient norm, if finite.
    pub fn finite_norm(&self) -> Option<f64> {
        Some(self.norm).filter(|norm| norm.is_finite())
    }

    /// Asks the divergence guard for a verdict, and updates the counters of `state`. The optimizer has
    /// already updated the weights, unless the loss or the norm is not finite. A rollback discards this
    /// update, so it leaves the counters unchanged.
    pub fn judge_and_count(&self, state: &mut TrainState, guard: &Guard) -> GuardVerdict {
        let StepSamples { mixture, samples, skipped, .. } = &self.drawn;
        let verdict = state.stages.losses.judge(guard, self.steps_before, samples.clone(), self.loss(), self.norm);
        match verdict {
            GuardVerdict::Rollback(_) => return verdict,
            GuardVerdict::Apply => {
                state.count_update();
                state.skipped.samples += skipped;
            }
            GuardVerdict::Skip => {
                state.skipped.updates += 1;
                state.skipped.samples += samples.end - samples.start;
                state.skipped.by_source.entry(mixture.clone()).or_default().add(samples.clone());
            }
        }
        let is_applied = verdict == GuardVerdict::Apply;
        state.stages.losses.add(guard, self.steps_before, samples.clone(), is_applied.then(|| self.loss()));
        state.stages.spikes.add(self.loss(), self.norm);
        state.step += 1;
        sample_position::advance(state, &self.drawn);
        verdict
    }
}
