//! When a save is due, and how long it may take.

use std::time::{Duration, Instant};

use lambert_config::RunConfig;
use lambert_config::run::Checkpoint;

use crate::checkpoint::retry_state::RetryState;
use crate::checkpoint::save::Save;
use crate::checkpoint::time_limit::TimeLimit;
use crate::worker::agreement::SaveVote;

/// The times of saves: intervals, retries after failures, and limits.
pub(super) struct SaveSchedule {
    settings: Checkpoint,
    /// A save is wanted as soon as none is under way.
    due: bool,
    last_save: Instant,
    retry_state: RetryState,
    limit: TimeLimit,
    /// Since when a stop is requested.
    stopping: Option<Instant>,
}

impl SaveSchedule {
    /// Starts the first interval now.
    pub fn new(config: &RunConfig) -> Self {
        Self {
            settings: config.checkpoint.clone(),
            due: false,
            last_save: Instant::now(),
            retry_state: RetryState::default(),
            limit: TimeLimit::new(config),
            stopping: None,
        }
    }

    /// Returns whether a save is due after `step`, or was due before and has not begun.
    pub fn is_due(&mut self, step: u64, wanted: bool) -> bool {
        let every = self.settings.every_steps;
        self.due |= wanted || every > 0 && step.is_multiple_of(every) && !self.retry_state.is_there();
        self.due
    }

    /// Returns whether the interval, or the pause after a failure, is over.
    pub fn is_overdue(&self) -> bool {
        let minutes = self.settings.every_minutes;
        let interval = minutes > 0.0 && self.last_save.elapsed() >= Duration::from_secs_f64(60.0 * minutes);
        if self.retry_state.is_there() { self.retry_state.is_due() } else { interval }
    }

    /// Begins a save, at the returned time.
    pub fn begin(&mut self) -> Instant {
        (self.due, self.last_save) = (false, Instant::now());
        self.last_save
    }

    /// Takes in a save that was begun at `began` and has failed.
    pub fn add_failure(&mut self, began: Instant) {
        self.retry_state.add(began);
    }

    /// Takes in a save that has succeeded.
    pub fn clear_failures(&mut self) {
        self.retry_state.clear();
    }

    /// The time from a failure to the next try.
    pub fn retry_pause(&self) -> Duration {
        self.retry_state.pause()
    }

    /// Starts the limit for saves before a stop. Later calls change nothing.
    pub fn stop(&mut self) {
        self.stopping.get_or_insert_with(Instant::now);
    }

    /// This rank's vote on the save under way; only rank 0, the `first` one, judges it by the clock.
    pub fn vote(&self, save: &mut Save, first: bool) -> SaveVote {
        let stopping = self.stopping.map(|since| since.elapsed());
        let over = self.limit.stop_is_over(stopping);
        save.decide(&self.retry_state, self.settings.give_up_minutes, over);
        save.vote(first.then(|| self.limit.judge(save.began.elapsed(), stopping)))
    }

    /// The consequence for a save that stays slow, for people.
    pub fn warning(&self) -> String {
        self.limit.warning()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(every_steps: u64, every_minutes: f64) -> SaveSchedule {
        let mut config = RunConfig::default();
        (config.checkpoint.every_steps, config.checkpoint.every_minutes) = (every_steps, every_minutes);
        SaveSchedule::new(&config)
    }

    #[test]
    fn a_save_stays_due_until_it_begins() {
        let mut schedule = schedule(5, 0.0);
        assert!(!schedule.is_due(4, false) && schedule.is_due(5, false) && schedule.is_due(6, false));
        schedule.begin();
        assert!(!schedule.is_due(7, false) && schedule.is_due(8, true));
    }

    #[test]
    fn after_a_failure_the_pause_counts_and_not_the_interval() {
        let mut schedule = schedule(5, 1e-9);
        std::thread::sleep(Duration::from_millis(1));
        assert!(schedule.is_overdue());
        let began = schedule.begin();
        schedule.add_failure(began);
        assert!(!schedule.is_overdue() && !schedule.is_due(10, false));
        schedule.clear_failures();
        assert!(schedule.is_due(10, false));
    }
}
