//! What a step computed, and what follows from it. The step record is derived from this, and so is every decision.

use std::ops::Range;

use lambert_config::run::Guard;

use crate::objective::totals::Totals;
use crate::recovery::guard::Verdict;
use crate::state::TrainState;

/// What a step drew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drawn {
    /// sha256 of the dataset's manifest.
    pub dataset: String,
    /// Numbers of its samples, counted over all epochs.
    pub samples: Range<u64>,
    /// How many of them were passed over.
    pub passed: u64,
}

/// What a step computed: the same on all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutcome {
    /// Name of the stage.
    pub stage: String,
    /// Steps finished before it.
    pub before: u64,
    /// Epoch of its first sample.
    pub epoch: u64,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch, without padding.
    pub tokens: u64,
    /// Tokens of padding in the micro-batches of all ranks.
    pub padding: u64,
    /// Tokens of the rank with the most over the mean, padding included.
    pub balance: f64,
    /// What it drew.
    pub drawn: Drawn,
    /// The learning rate of its update.
    pub learning_rate: f64,
    /// Sums over all ranks.
    pub totals: Totals,
    /// The L2 norm of the gradient over all ranks, before clipping.
    pub norm: f64,
}

impl StepOutcome {
    /// The total loss, nats.
    pub fn loss(&self) -> f64 {
        self.totals.total_loss()
    }

    /// The gradient's norm, where it is finite.
    pub fn finite_norm(&self) -> Option<f64> {
        Some(self.norm).filter(|norm| norm.is_finite())
    }

    /// Judges the step and counts it. Its update has been made (where loss and norm are finite) and is undone by the way back
    /// if the verdict says so: then nothing is counted.
    pub fn conclude(&self, state: &mut TrainState, guard: &Guard) -> Verdict {
        let Drawn { dataset, samples, passed } = &self.drawn;
        let verdict = state.stages.history.judge(guard, self.before, samples.clone(), self.loss(), self.norm);
        match verdict {
            Verdict::GoBack(_) => return verdict,
            Verdict::Sound => {
                state.count_update();
                state.skipped.samples += passed;
            }
            Verdict::Skip => {
                state.skipped.updates += 1;
                state.skipped.samples += samples.end - samples.start;
                state.skipped.by_dataset.entry(dataset.clone()).or_default().add(samples.clone());
            }
        }
        let sound = verdict == Verdict::Sound;
        state.stages.history.add(guard, self.before, samples.clone(), sound.then(|| self.loss()));
        state.step += 1;
        state.cursors.insert(dataset.clone(), samples.end);
        verdict
    }
}
