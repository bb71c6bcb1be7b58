//! The steps of an attempt.

use std::collections::VecDeque;

use lambert_control::StepRecord;

use crate::decide::Seconds;

/// Steps that the median is taken over.
const WINDOW: usize = 50;

/// The work that an attempt has done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steps {
    /// Whether training has started.
    pub started: bool,
    /// Most steps that a rank has finished.
    pub finished: u64,
    /// Whether a checkpoint was committed.
    pub committed: bool,
    /// Seconds of each of the last steps.
    seconds: VecDeque<f64>,
}

impl Steps {
    /// A rank has finished this many.
    pub(super) fn reach(&mut self, finished: u64) {
        self.finished = self.finished.max(finished);
    }

    pub(super) fn record(&mut self, record: &StepRecord) {
        self.seconds.push_back(record.times.seconds);
        self.seconds.drain(..self.seconds.len().saturating_sub(WINDOW));
        self.reach(record.step);
    }

    /// The median of the last steps, seconds; `None` before the first.
    pub fn median(&self) -> Option<Seconds> {
        let mut seconds: Vec<f64> = self.seconds.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// Whether there is nothing to lose: no step has a record and no checkpoint was committed.
    pub(super) fn are_none(&self) -> bool {
        self.seconds.is_empty() && !self.committed
    }
}
