//! Newest and best checkpoint of a run.

use lambert_store::checkpoint::{Best, Manifest};

use crate::checkpoint::ResumeOrigin;

/// Newest and best checkpoint, and the last evaluation.
pub(super) struct KnownCheckpoints {
    /// Newest checkpoint and its step.
    newest: Option<(String, u64)>,
    /// True if the state has changed since the newest checkpoint, within the same step.
    stale: bool,
    /// Best checkpoint by held-out loss.
    best: Option<Best>,
    /// Step and loss of the last evaluation.
    evaluated: Option<(u64, f64)>,
    /// Description of what the loss of the last evaluation measures.
    measured: Option<String>,
}

impl KnownCheckpoints {
    /// Creates the known checkpoints of an attempt that resumes from `origin` at `step`.
    pub fn new(origin: ResumeOrigin, step: u64) -> Self {
        let newest = origin.checkpoint.map(|name| (name, step));
        Self { newest, stale: false, best: origin.best, evaluated: None, measured: None }
    }

    /// Records the held-out loss after `step`, and what it measures. Returns true if it is the best so far, or if
    /// earlier losses measured something else.
    pub fn add_evaluation(&mut self, step: u64, loss: f64, measured: String) -> bool {
        self.evaluated = loss.is_finite().then_some((step, loss));
        self.measured = Some(measured);
        loss.is_finite() && self.is_best(loss)
    }

    fn is_best(&self, loss: f64) -> bool {
        let is_comparable = |best: &Best| best.measured.is_none() || best.measured == self.measured;
        self.best.as_ref().is_none_or(|best| loss < best.loss || !is_comparable(best))
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
        let best = |loss| Best { checkpoint: name.to_owned(), loss, measured: self.measured.clone() };
        better.map(best).or_else(|| self.best.clone())
    }

    /// Records the checkpoint `name`, committed with `manifest`.
    pub fn commit(&mut self, name: String, manifest: Manifest) {
        (self.newest, self.best, self.stale) = (Some((name, manifest.step)), manifest.best, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_measure_something_else_are_not_compared() {
        let best = |measured: Option<&str>| {
            Some(Best { checkpoint: "step-000000007-a0001".into(), loss: 2.0, measured: measured.map(str::to_owned) })
        };
        let known = |measured| {
            let origin = ResumeOrigin { best: best(measured), ..ResumeOrigin::default() };
            KnownCheckpoints::new(origin, 7)
        };
        // (measured before, loss now, is the best): the loss now measures "a".
        for (before, loss, expected) in
            [(Some("a"), 1.5, true), (Some("a"), 2.5, false), (Some("b"), 2.5, true), (None, 2.5, false)]
        {
            let mut known = known(before);
            assert_eq!(known.add_evaluation(9, loss, "a".into()), expected, "{before:?} {loss}");
            let made = Best { checkpoint: "step-000000009-a0002".into(), loss, measured: Some("a".into()) };
            let kept = if expected { Some(made) } else { best(before) };
            assert_eq!(known.best_with("step-000000009-a0002", Some(loss)), kept);
            // A checkpoint without an evaluation does not replace the best one.
            assert_eq!(known.best_with("step-000000010-a0002", None), best(before));
        }
        assert!(!known(Some("b")).add_evaluation(9, f64::NAN, "a".into()));
    }
}
