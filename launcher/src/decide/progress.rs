//! Whether a run gets anywhere: attempts that end without a new checkpoint, and rollbacks that lead to no other end.

use serde::{Deserialize, Serialize};

/// How far a run has come, and how often it has been tried since without getting further. Part of the coordinator's memory, so
/// that it outlives a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Steps of the furthest checkpoint.
    pub furthest: u64,
    /// Attempts in a row that count and have ended without a checkpoint beyond it.
    pub fruitless: usize,
    /// An attempt is under way that has not committed such a checkpoint.
    pub pending: bool,
    /// Rollbacks in a row without a checkpoint beyond the step at which the last of them was decided.
    pub rollbacks: usize,
    /// That step.
    pub diverged_at: u64,
}

impl Progress {
    /// An attempt begins.
    pub fn begin(&mut self) {
        self.pending = true;
    }

    /// An attempt has loaded a checkpoint of `step` steps.
    pub fn loaded(&mut self, step: u64) {
        self.furthest = self.furthest.max(step);
    }

    /// A checkpoint of `step` steps was committed.
    pub fn committed(&mut self, step: u64) {
        if step > self.furthest {
            (self.furthest, self.fruitless, self.pending) = (step, 0, false);
        }
        if step > self.diverged_at {
            (self.rollbacks, self.diverged_at) = (0, 0);
        }
    }

    /// The attempt under way, if there is one, has ended; `counts` says whether that counts as fruitless if it was.
    pub fn end(&mut self, counts: bool) {
        self.fruitless += usize::from(self.pending && counts);
        self.pending = false;
    }

    /// The attempt under way has ended with a rollback that was decided at step `at`; checkpoints of more than `to` steps are
    /// undone, and the way to them is to be made again.
    pub fn rolled_back(&mut self, at: u64, to: u64) {
        self.end(false);
        self.furthest = self.furthest.min(to);
        (self.rollbacks, self.diverged_at) = (self.rollbacks + 1, at);
    }

    /// Whoever starts the run again has mended something: counts begin anew.
    pub fn forget_failures(&mut self) {
        *self = Self { furthest: self.furthest, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The furthest checkpoint and the fruitless attempts since.
    fn counts(progress: &Progress) -> (u64, usize) {
        (progress.furthest, progress.fruitless)
    }

    #[test]
    fn only_a_checkpoint_beyond_every_earlier_one_is_progress() {
        let mut progress = Progress::default();
        for committed in [10, 20] {
            progress.begin();
            progress.committed(committed);
            progress.end(true);
            assert_eq!(counts(&progress), (committed, 0));
        }
        // Back at 10, because the one of 20 is damaged.
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
        // A run whose checkpoints were there before this memory.
        progress.loaded(100);
        progress.begin();
        progress.committed(50);
        progress.end(true);
        assert_eq!(counts(&progress), (100, 1));
    }

    #[test]
    fn a_checkpoint_below_the_step_of_a_rollback_is_no_progress_past_it() {
        let mut progress = Progress::default();
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
