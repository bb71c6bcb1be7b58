//! Training progress of an attempt.

use std::collections::VecDeque;

use lambert_control::StepRecord;

use crate::decide::Seconds;

/// Number of recent steps over which the median duration is computed.
const WINDOW: usize = 50;

/// Training progress of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steps {
    /// True once training has started.
    pub started: bool,
    /// Most steps completed by any rank.
    pub finished: u64,
    /// True once a checkpoint was committed.
    pub committed: bool,
    /// Durations of recent steps, seconds.
    seconds: VecDeque<f64>,
}

impl Steps {
    /// Registers that a rank has completed `finished` steps.
    pub(super) fn reach(&mut self, finished: u64) {
        self.finished = self.finished.max(finished);
    }

    pub(super) fn record(&mut self, record: &StepRecord) {
        self.seconds.push_back(record.times.seconds);
        self.seconds.drain(..self.seconds.len().saturating_sub(WINDOW));
        self.reach(record.step);
    }

    /// Median duration of recent steps, seconds. `None` before the first step record.
    pub fn median(&self) -> Option<Seconds> {
        let mut seconds: Vec<f64> = self.seconds.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// True if the attempt has no step record and no committed checkpoint, so that no work would be lost.
    pub(super) fn are_none(&self) -> bool {
        self.seconds.is_empty() && !self.committed
    }
}
