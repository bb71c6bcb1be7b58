//! Retry schedule of failed saves.

use std::time::{Duration, Instant};

/// Upper bound of the backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Consecutive failed saves.
#[derive(Debug, Default)]
pub struct RetryState {
    failures: u32,
    since: Option<Instant>,
    last: Option<Instant>,
}

impl RetryState {
    /// Records a failed save that began at `began`.
    pub fn add(&mut self, began: Instant) {
        self.failures += 1;
        self.since.get_or_insert(began);
        self.last = Some(Instant::now());
    }

    /// Records a successful save.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// True if the last save failed.
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Backoff after a failure: 1, 2, 4 ... 60 seconds.
    pub fn pause(&self) -> Duration {
        Duration::from_secs(1 << self.failures.saturating_sub(1).min(16)).min(MAX_BACKOFF)
    }

    /// True if the backoff has elapsed.
    pub fn is_due(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() >= self.pause())
    }

    /// Time since the first of the consecutive failed saves began. If there is none, time since `began`, when the
    /// current save began.
    pub fn failing_for(&self, began: Instant) -> Duration {
        self.since.unwrap_or(began).elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_minute_and_resets_after_a_success() {
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
    fn failures_last_since_the_first_failed_save_began() {
        let mut retry_state = RetryState::default();
        let began = Instant::now() - Duration::from_secs(100);
        retry_state.add(began);
        retry_state.add(Instant::now());
        assert!(retry_state.failing_for(Instant::now()) >= Duration::from_secs(100));
        retry_state.clear();
        assert!(retry_state.failing_for(Instant::now()) < Duration::from_secs(100));
    }
}
