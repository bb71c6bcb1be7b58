//! Retry schedule of failed saves.

use std::time::Duration;

/// Upper bound of the backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Consecutive failed saves. Times are those of one clock, since its start.
#[derive(Debug, Default)]
pub struct RetryState {
    failures: u32,
    since: Option<Duration>,
    last: Option<Duration>,
}

impl RetryState {
    /// Records a failed save that began at `began` and failed at `now`.
    pub fn add(&mut self, began: Duration, now: Duration) {
        self.failures += 1;
        self.since.get_or_insert(began);
        self.last = Some(now);
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
    pub fn is_due(&self, now: Duration) -> bool {
        self.last.is_some_and(|last| now.saturating_sub(last) >= self.pause())
    }

    /// Time since the first of the consecutive failed saves began; without one, time since `began`, the start of the
    /// current save.
    pub fn failing_for(&self, began: Duration, now: Duration) -> Duration {
        now.saturating_sub(self.since.unwrap_or(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn backoff_doubles_up_to_a_minute_and_resets_after_a_success() {
        let mut retry_state = RetryState::default();
        assert!(!retry_state.is_due(at(100)));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            retry_state.add(at(90), at(100));
            pauses.push(retry_state.pause().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(!retry_state.is_due(at(159)) && retry_state.is_due(at(160)));
        retry_state.clear();
        retry_state.add(at(200), at(201));
        assert_eq!(retry_state.pause().as_secs(), 1);
    }

    #[test]
    fn failures_last_since_the_first_failed_save_began() {
        let mut retry_state = RetryState::default();
        retry_state.add(at(100), at(110));
        retry_state.add(at(120), at(130));
        assert_eq!(retry_state.failing_for(at(140), at(200)), at(100));
        retry_state.clear();
        assert_eq!(retry_state.failing_for(at(140), at(200)), at(60));
    }
}
