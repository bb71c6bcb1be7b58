//! Newest and best checkpoint of a run.

use lambert_store::checkpoint::{Best, Manifest};

use crate::checkpoint::ResumeOrigin;

/// Newest and best checkpoint, and the last evaluation.
pub(super) struct CheckpointHistory {
    /// Newest checkpoint and its step.
    newest: Option<(String, u64)>,
    /// True if the state has changed since the newest checkpoint, within the same step.
    stale: bool,
    /// Best checkpoint by held-out loss.
    best: Option<Best>,
    /// Step and loss of the last evaluation.
    evaluated: Option<(u64, f64)>,
}

impl CheckpointHistory {
    /// Creates the history of an attempt that resumes from `origin` at `step`.
    pub fn new(origin: ResumeOrigin, step: u64) -> Self {
        let newest = origin.checkpoint.map(|name| (name, step));
        Self { newest, stale: false, best: origin.best, evaluated: None }
    }

    /// Records the held-out loss after `step`. Returns true if it is the best so far.
    pub fn add_evaluation(&mut self, step: u64, loss: f64) -> bool {
        self.evaluated = loss.is_finite().then_some((step, loss));
        loss.is_finite() && self.is_best(loss)
    }

    fn is_best(&self, loss: f64) -> bool {
        self.best.as_ref().is_none_or(|best| loss < best.loss)
    }

    /// Marks the newest checkpoint as outdated, so that its step is saved again.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Returns true if the newest checkpoint has the state after `step`.
    pub fn has(&self, step: u64) -> bool {
        !self.stale && self.newest.as_ref().is_some_and(|(_, newest)| *newest == step)
    }

    /// Step of the newest checkpoint; 0 without one.
    pub fn step(&self) -> u64 {
        self.newest.as_ref().map_or(0, |(_, step)| *step)
    }

    /// Name of the newest checkpoint.
    pub fn newest(&self) -> Option<String> {
        self.newest.as_ref().map(|(name, _)| name.clone())
    }

    /// Held-out loss after `step`, if measured.
    pub fn loss(&self, step: u64) -> Option<f64> {
        self.evaluated.filter(|(evaluated, _)| *evaluated == step).map(|(_, loss)| loss)
    }

    /// Returns the best checkpoint of the run as if `name` were already committed with held-out loss `loss`.
    pub fn best_with(&self, name: &str, loss: Option<f64>) -> Option<Best> {
        let better = loss.filter(|loss| self.is_best(*loss));
        better.map(|loss| Best { checkpoint: name.to_owned(), loss }).or_else(|| self.best.clone())
    }

    /// Records the checkpoint `name`, committed with `manifest`.
    pub fn commit(&mut self, name: String, manifest: Manifest) {
        (self.newest, self.best, self.stale) = (Some((name, manifest.step)), manifest.best, false);
    }
}
