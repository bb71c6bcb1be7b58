//! Saves that fail: when to try again, and when to stop.

use std::time::{Duration, Instant};

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Failures in a row.
#[derive(Debug, Default)]
pub struct RetryState {
    failures: u32,
    since: Option<Instant>,
    last: Option<Instant>,
}

impl RetryState {
    /// A save that was begun at `began` has failed.
    pub fn add(&mut self, began: Instant) {
        self.failures += 1;
        self.since.get_or_insert(began);
        self.last = Some(Instant::now());
    }

    /// A save has succeeded.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether the last save has failed.
    pub fn is_there(&self) -> bool {
        self.failures > 0
    }

    /// From a failure to the next try: 1, 2, 4 ... 60 seconds.
    pub fn pause(&self) -> Duration {
        Duration::from_secs(1 << self.failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
    }

    /// Whether it is time for the next try.
    pub fn is_due(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() >= self.pause())
    }

    /// How long saves have failed, should the one that was begun at `began` have failed, too.
    pub fn lasts(&self, began: Instant) -> Duration {
        self.since.unwrap_or(began).elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_again_after_a_success() {
        let mut retry_state = RetryState::default();
        assert!(!retry_state.is_due());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            retry_state.add(Instant::now());
            pauses.push(retry_state.pause().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(!retry_state.is_due());
        retry_state.clear();
        retry_state.add(Instant::now());
        assert_eq!(retry_state.pause().as_secs(), 1);
    }

    #[test]
    fn it_lasts_since_the_first_failed_save_began() {
        let mut retry_state = RetryState::default();
        let began = Instant::now() - Duration::from_secs(100);
        retry_state.add(began);
        retry_state.add(Instant::now());
        assert!(retry_state.lasts(Instant::now()) >= Duration::from_secs(100));
        retry_state.clear();
        assert!(retry_state.lasts(Instant::now()) < Duration::from_secs(100));
    }
}
