//! Divergence guard: decides if a step may change the weights, and when to roll back and skip samples.
//!
//! Decisions are pure functions of all-reduced values, so all ranks decide alike without further communication.

use std::collections::VecDeque;
use std::ops::Range;

use lambert_config::run::Guard;
use serde::{Deserialize, Serialize};

/// Minimum distance between the mean loss and the loss limit, which lies above the mean. The distance is a fraction of
/// the mean. Without this minimum, an ordinary batch could exceed the limit after many steps with low variance.
const MIN_BAND: f64 = 0.1;

/// Loss statistics and recent steps of a stage, which are part of the training state. The
/// statistics are f32, which JSON preserves exactly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LossHistory {
    /// Number of finite losses in this stage.
    losses: u64,
    /// Running mean of the losses, nats.
    mean: f32,
    /// Running variance of the losses, nats squared.
    variance: f32,
    /// Latest steps of this stage, oldest first. Only the steps that a rollback can undo are kept.
    recent: VecDeque<RecentStep>,
}

/// A recent step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentStep {
    /// Number of steps completed before this step.
    #[serde(rename = "before")]
    pub steps_before: u64,
    /// Sample numbers of this step in the mixture of the stage, counted over all epochs.
    pub samples: Range<u64>,
    /// True if loss and gradient were finite.
    #[serde(rename = "finite", alias = "sound")]
    pub is_finite: bool,
}

/// Decision on a step.
#[derive(Debug, Clone, PartialEq)]
pub enum GuardVerdict {
    /// Keep the update.
    Apply,
    /// Skip the update, because the loss or the gradient is not finite.
    Skip,
    /// Discard the update and roll back.
    Rollback(RollbackPlan),
}

/// Target of a rollback and the samples to skip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackPlan {
    /// Step that triggered the rollback.
    pub step: u64,
    /// Last good step.
    pub last_kept: u64,
    /// Samples to skip from now on.
    pub samples: Range<u64>,
    /// Reason for the rollback, as text for messages.
    pub reason: String,
}

impl LossHistory {
    /// Decides on a step. `steps_before` is the number of steps completed before this step. `samples` are the samples that
    /// the step drew. `loss` (nats) and the gradient norm `norm` are over all ranks.
    pub fn judge(&self, guard: &Guard, steps_before: u64, samples: Range<u64>, loss: f64, norm: f64) -> GuardVerdict {
        let roll_back = |bad: usize, reason| {
            GuardVerdict::Rollback(self.rollback_plan(guard, steps_before, samples.clone(), bad, reason))
        };
        if !loss.is_finite() || !norm.is_finite() {
            let row = self.recent.iter().rev().take_while(|step| !step.is_finite).count();
            let limit = guard.nonfinite_steps as usize;
            if limit > 0 && row + 1 >= limit {
                return roll_back(
                    row,
                    format!(
                        "loss or gradient not finite in {} consecutive steps (guard.nonfinite_steps = {limit})",
                        row + 1
                    ),
                );
            }
            return GuardVerdict::Skip;
        }
        match self.upper_bound(guard).filter(|limit| loss > *limit) {
            Some(limit) => roll_back(0, format!("loss {loss:.4} is above the limit of {limit:.4}")),
            None => GuardVerdict::Apply,
        }
    }

    /// Loss limit; `None` if the limit is off or fewer than `loss_window` losses are known.
    fn upper_bound(&self, guard: &Guard) -> Option<f64> {
        let (mean, deviation) = (f64::from(self.mean), f64::from(self.variance).sqrt());
        let known = guard.loss_band > 0.0 && self.losses >= guard.loss_window;
        known.then(|| mean + (guard.loss_band * deviation).max(MIN_BAND * mean))
    }

    /// Plans a rollback of the current step, the `bad` non-finite steps before it, and the `batches_before` steps before
    /// those. These earlier steps are included because a harmful update becomes visible only in the loss of the next
    /// batch.
    fn rollback_plan(
        &self,
        guard: &Guard,
        steps_before: u64,
        samples: Range<u64>,
        bad: usize,
        reason: String,
    ) -> RollbackPlan {
        let back = (bad + guard.batches_before as usize).min(self.recent.len());
        let first = back.checked_sub(1).map(|last| &self.recent[self.recent.len() - 1 - last]);
        let (last_kept, start) =
            first.map_or((steps_before, samples.start), |step| (step.steps_before, step.samples.start));
        let step = steps_before + 1;
        RollbackPlan { step, last_kept, samples: start..samples.end, reason: format!("step {step}: {reason}") }
    }

    /// Adds a completed step. `loss` is `None` if the update of the step was skipped.
    pub fn add(&mut self, guard: &Guard, steps_before: u64, samples: Range<u64>, loss: Option<f64>) {
        self.recent.push_back(RecentStep { steps_before, samples, is_finite: loss.is_some() });
        let most = (guard.nonfinite_steps + guard.batches_before) as usize;
        self.recent.drain(..self.recent.len().saturating_sub(most));
        let Some(loss) = loss else { return };
        self.losses += 1;
        let share = 1.0 / self.losses.min(guard.loss_window) as f64;
        let away = loss - f64::from(self.mean);
        self.mean = (f64::from(self.mean) + share * away) as f32;
        self.variance = ((1.0 - share) * (f64::from(self.variance) + share * away * away)) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard { nonfinite_steps: 3, loss_band: 8.0, loss_window: 50, batches_before: 1, ..Guard::default() }
    }

    /// History of `steps` steps of 4 samples each, with losses around 5.
    fn history(steps: u64) -> LossHistory {
        let mut history = LossHistory::default();
        for step in 0..steps {
            history.add(&guard(), step, 4 * step..4 * step + 4, Some(5.0 + 0.1 * (step as f64).sin()));
        }
        history
    }

    fn back(history: &LossHistory, before: u64, loss: f64) -> Option<RollbackPlan> {
        match history.judge(&guard(), before, 4 * before..4 * before + 4, loss, 1.0) {
            GuardVerdict::Rollback(plan) => Some(plan),
            _ => None,
        }
    }

    #[test]
    fn loss_above_the_limit_rolls_back_past_the_previous_batch() {
        let history = history(60);
        assert_eq!(back(&history, 60, 5.5), None);
        let plan = back(&history, 60, 5.7).unwrap();
        assert_eq!((plan.step, plan.last_kept, plan.samples), (61, 59, 236..244));
        assert!(plan.reason.starts_with("step 61: loss 5.7000 is above the limit of "), "{}", plan.reason);
        assert_eq!(back(&history, 60, 0.1), None, "a low loss is no divergence");
    }

    #[test]
    fn limit_needs_enough_losses() {
        assert_eq!(back(&history(49), 49, 1e9), None);
        assert!(back(&history(50), 50, 1e9).is_some());
        let off = Guard { loss_band: 0.0, ..guard() };
        assert_eq!(history(60).judge(&off, 60, 0..4, 1e9, 1.0), GuardVerdict::Apply);
    }

    #[test]
    fn nonfinite_steps_are_skipped_until_several_occur_in_a_row() {
        let mut history = history(60);
        for step in 60..62 {
            let samples = 4 * step..4 * step + 4;
            let [loss, norm] = if step == 60 { [f64::NAN, 1.0] } else { [5.0, f64::INFINITY] };
            assert_eq!(history.judge(&guard(), step, samples.clone(), loss, norm), GuardVerdict::Skip);
            history.add(&guard(), step, samples, None);
        }
        let plan = back(&history, 62, f64::NAN).unwrap();
        assert_eq!((plan.last_kept, plan.samples), (59, 236..252));
        history.add(&guard(), 62, 248..252, Some(5.0));
        assert_eq!(back(&history, 63, f64::NAN), None, "a finite step resets the count");
    }

    #[test]
    fn rollback_stays_within_the_stage() {
        let always = Guard { nonfinite_steps: 1, ..guard() };
        let verdict = LossHistory::default().judge(&always, 7, 30..34, f64::NAN, 1.0);
        let GuardVerdict::Rollback(plan) = verdict else { panic!("{verdict:?}") };
        assert_eq!((plan.last_kept, plan.samples), (7, 30..34));
    }

    #[test]
    fn history_round_trips_through_json() {
        let mut history = LossHistory::default();
        for step in 0..500 {
            history.add(&guard(), step, 0..4, Some(10.0 / (1.0 + step as f64).ln_1p()));
            let text = serde_json::to_string(&history).unwrap();
            assert_eq!(serde_json::from_str::<LossHistory>(&text).unwrap(), history, "{text}");
        }
    }
}
