//! Detects runs without progress: attempts that end without a new checkpoint, and repeated rollbacks.

use serde::{Deserialize, Serialize};

/// Furthest checkpoint of a run, and the attempts after it. The restart history contains this record, so the record
/// outlives a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointProgress {
    /// Steps of the furthest checkpoint.
    #[serde(rename = "furthest")]
    pub furthest_checkpoint: u64,
    /// Number of consecutive attempts that ended without a checkpoint beyond `furthest_checkpoint`. Attempts that end with
    /// `counts` false are not included (see [`CheckpointProgress::end`]).
    #[serde(rename = "fruitless")]
    pub attempts_without_checkpoint: usize,
    /// True while an attempt is running that has not yet committed a checkpoint beyond `furthest_checkpoint`.
    pub pending: bool,
    /// Consecutive rollbacks without a checkpoint beyond the step of the last rollback.
    pub rollbacks: usize,
    /// Step at which the last rollback was decided.
    pub diverged_at: u64,
}

impl CheckpointProgress {
    /// Registers the start of an attempt.
    pub fn begin(&mut self) {
        self.pending = true;
    }

    /// Registers that an attempt loaded a checkpoint at step `step`.
    pub fn loaded(&mut self, step: u64) {
        self.furthest_checkpoint = self.furthest_checkpoint.max(step);
    }

    /// Registers that a checkpoint at step `step` was committed.
    pub fn committed(&mut self, step: u64) {
        if step > self.furthest_checkpoint {
            (self.furthest_checkpoint, self.attempts_without_checkpoint, self.pending) = (step, 0, false);
        }
        if step > self.diverged_at {
            (self.rollbacks, self.diverged_at) = (0, 0);
        }
    }

    /// Registers the end of the running attempt, if any. An attempt without progress is counted if `counts` is true.
    pub fn end(&mut self, counts: bool) {
        self.attempts_without_checkpoint += usize::from(self.pending && counts);
        self.pending = false;
    }

    /// Registers that the attempt ended with a rollback at step `at`. Checkpoints after step `last_kept` are invalid, so a
    /// new checkpoint after step `last_kept` counts as progress again.
    pub fn rolled_back(&mut self, at: u64, last_kept: u64) {
        self.end(false);
        self.furthest_checkpoint = self.furthest_checkpoint.min(last_kept);
        (self.rollbacks, self.diverged_at) = (self.rollbacks + 1, at);
    }

    /// Resets the counts: a user who restarts the run has fixed the cause.
    pub fn forget_failures(&mut self) {
        *self = Self { furthest_checkpoint: self.furthest_checkpoint, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step of the furthest checkpoint, and the number of attempts without progress after it.
    fn counts(progress: &CheckpointProgress) -> (u64, usize) {
        (progress.furthest_checkpoint, progress.attempts_without_checkpoint)
    }

    #[test]
    fn only_a_checkpoint_beyond_every_earlier_one_is_progress() {
        let mut progress = CheckpointProgress::default();
        for committed in [10, 20] {
            progress.begin();
            progress.committed(committed);
            progress.end(true);
            assert_eq!(counts(&progress), (committed, 0));
        }
        // The attempt resumes from step 10 because the checkpoint at step 20 is damaged.
        progress.begin();
        progress.loaded(10);
        progress.committed(15);
        progress.committed(20);
        progress.end(true);
        assert_eq!(counts(&progress), (20, 1));
        progress.begin();
        progress.end(false);
        progress.end(true);
        assert_eq!(counts(&progress), (20, 1), "nothing is under way");
        progress.begin();
        progress.committed(21);
        progress.end(true);
        assert_eq!(counts(&progress), (21, 0));
        // The checkpoints of this run are older than the record.
        progress.loaded(100);
        progress.begin();
        progress.committed(50);
        progress.end(true);
        assert_eq!(counts(&progress), (100, 1));
    }

    #[test]
    fn a_checkpoint_before_the_rolled_back_step_is_not_progress() {
        let mut progress = CheckpointProgress::default();
        progress.begin();
        progress.committed(48);
        progress.rolled_back(51, 47);
        assert_eq!((progress.rollbacks, counts(&progress)), (1, (47, 0)));
        for step in [48, 51] {
            progress.begin();
            progress.committed(step);
            assert_eq!(progress.rollbacks, 1, "it may diverge there again");
        }
        progress.rolled_back(53, 50);
        assert_eq!(progress.rollbacks, 2);
        progress.committed(54);
        assert_eq!(progress.rollbacks, 0);
    }
}
