//! The newest and the best checkpoint of a run.

use lambert_store::checkpoint::{Best, Manifest};

use crate::checkpoint::Origin;

/// The newest and the best checkpoint, and the last evaluation.
pub(super) struct CheckpointHistory {
    /// The newest checkpoint, and its step.
    newest: Option<(String, u64)>,
    /// The state has changed since then without a step.
    stale: bool,
    /// The best checkpoint by held-out loss.
    best: Option<Best>,
    /// The last evaluation's step and loss.
    evaluated: Option<(u64, f64)>,
}

impl CheckpointHistory {
    /// The history of an attempt that resumes from `origin` after `step` steps.
    pub fn new(origin: Origin, step: u64) -> Self {
        let newest = origin.checkpoint.map(|name| (name, step));
        Self { newest, stale: false, best: origin.best, evaluated: None }
    }

    /// Takes in the held-out loss after `step`. Returns whether it is the best so far.
    pub fn add_evaluation(&mut self, step: u64, loss: f64) -> bool {
        self.evaluated = loss.is_finite().then_some((step, loss));
        loss.is_finite() && self.is_best(loss)
    }

    fn is_best(&self, loss: f64) -> bool {
        self.best.as_ref().is_none_or(|best| loss < best.loss)
    }

    /// Makes the next save one of the newest checkpoint's step, whose state has changed.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Returns whether the newest checkpoint has the state after `step`.
    pub fn has(&self, step: u64) -> bool {
        !self.stale && self.newest.as_ref().is_some_and(|(_, newest)| *newest == step)
    }

    /// The newest checkpoint's step; 0 without one.
    pub fn step(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(_, step)| *step)
    }

    /// The newest checkpoint.
    pub fn newest(&self) -> Option<String> {
        self.newest.as_ref().map(|(name, _)| name.clone())
    }

    /// The held-out loss after `step`, if it was measured.
    pub fn loss(&self, step: u64) -> Option<f64> {
        self.evaluated.filter(|(evaluated, _)| *evaluated == step).map(|(_, loss)| loss)
    }

    /// The best checkpoint once `name` is committed, with the held-out loss `loss`.
    pub fn best_with(&self, name: &str, loss: Option<f64>) -> Option<Best> {
        let better = loss.filter(|loss| self.is_best(*loss));
        better.map(|loss| Best { checkpoint: name.to_owned(), loss }).or_else(|| self.best.clone())
    }

    /// Takes in the checkpoint `name`, which was committed with `manifest`.
    pub fn commit(&mut self, name: String, manifest: Manifest) {
        (self.newest, self.best, self.stale) = (Some((name, manifest.step)), manifest.best, false);
    }
}
