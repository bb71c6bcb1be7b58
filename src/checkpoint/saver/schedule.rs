//! Save schedule: intervals, retries and time limits.

use std::time::Duration;

use lambert_config::run::Checkpoint;
use lambert_config::{RunConfig, duration};

use crate::checkpoint::commit::SaveOutcome;
use crate::checkpoint::retry_state::RetryState;
use crate::checkpoint::running_clock::RunningClock;
use crate::checkpoint::time_limit::{SaveTimeLimit, SaveTiming};

/// Upper bound of the backoff after a stop request.
const MAX_STOP_BACKOFF: Duration = Duration::from_secs(2);

/// Save intervals, retries after failures, and time limits. Times are those of `clock`, without suspensions.
pub(super) struct SaveSchedule {
    clock: RunningClock,
    settings: Checkpoint,
    /// True if a save is due and waits for the previous save to end.
    due: bool,
    last_save: Duration,
    retry_state: RetryState,
    limit: SaveTimeLimit,
    /// Time of the stop request.
    stopping: Option<Duration>,
}

impl SaveSchedule {
    /// Starts the first interval.
    pub fn new(config: &RunConfig) -> Self {
        let clock = RunningClock::start();
        Self {
            last_save: clock.now(),
            clock,
            settings: config.checkpoint.clone(),
            due: false,
            retry_state: RetryState::default(),
            limit: SaveTimeLimit::new(config),
            stopping: None,
        }
    }

    /// Returns true if a save is due after `step`, or was due earlier and has not begun.
    pub fn update_due(&mut self, step: u64, is_requested: bool) -> bool {
        let every = self.settings.every_steps;
        self.due |= is_requested || every > 0 && step.is_multiple_of(every) && !self.retry_state.has_failed();
        self.due
    }

    /// Returns true if the interval, or the backoff after a failure, has elapsed.
    pub fn is_due_by_time(&self) -> bool {
        let minutes = self.settings.every_minutes;
        let interval = minutes > 0.0 && self.time_since(self.last_save) >= duration::minutes(minutes);
        if self.retry_state.has_failed() { self.retry_state.is_due(self.clock.now()) } else { interval }
    }

    /// Begins a save and returns its start time.
    pub fn begin(&mut self) -> Duration {
        (self.due, self.last_save) = (false, self.clock.now());
        self.last_save
    }

    /// Time since `earlier`, the start of a save.
    pub fn time_since(&self, earlier: Duration) -> Duration {
        self.clock.since(earlier)
    }

    /// Records a failed save that began at `began`.
    pub fn add_failure(&mut self, began: Duration) {
        self.retry_state.add(began, self.clock.now());
    }

    /// Records a successful save.
    pub fn clear_failures(&mut self) {
        self.retry_state.clear();
    }

    /// Backoff after a failure. It is short after a stop request, because the time of a stop is limited.
    pub fn retry_pause(&self) -> Duration {
        let longest = self.stopping.map_or(Duration::MAX, |_| MAX_STOP_BACKOFF);
        self.retry_state.pause().min(longest)
    }

    /// Starts the time limit of saves before a stop. Later calls have no effect.
    pub fn start_stop_limit(&mut self) {
        let now = self.clock.now();
        self.stopping.get_or_insert(now);
    }

    /// Returns the outcome of a save that began at `began`, from the outcome of its commit. A failure becomes permanent
    /// if all saves have failed for `checkpoint.give_up_minutes`, or if the limit of a stop request is exceeded.
    pub fn final_outcome(&self, outcome: SaveOutcome, began: Duration) -> SaveOutcome {
        let SaveOutcome::Failed(why) = outcome else { return outcome };
        let limit = self.settings.give_up_minutes;
        let lasts = self.retry_state.failing_for(began, self.clock.now()).as_secs_f64() / 60.0;
        if lasts >= limit {
            return SaveOutcome::Permanent(format!(
                "all saves have failed for {lasts:.1} minutes (checkpoint.give_up_minutes = {limit}): {why}"
            ));
        }
        match self.limit.exceeded_stop_limit(self.time_since_stop()) {
            Some(over) => SaveOutcome::Permanent(format!("not saved {over}: {why}")),
            None => SaveOutcome::Failed(why),
        }
    }

    /// Time since the stop request.
    fn time_since_stop(&self) -> Option<Duration> {
        self.stopping.map(|since| self.time_since(since))
    }

    /// Timing of a save that began at `began`, relative to the time limits.
    pub fn timing(&self, began: Duration) -> SaveTiming {
        self.limit.judge(self.time_since(began), self.time_since_stop())
    }

    /// Warning about the time limit of a slow save.
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
        assert!(!schedule.update_due(4, false) && schedule.update_due(5, false) && schedule.update_due(6, false));
        schedule.begin();
        assert!(!schedule.update_due(7, false) && schedule.update_due(8, true));
    }

    #[test]
    fn the_backoff_is_short_at_a_stop() {
        let mut schedule = schedule(5, 0.0);
        (0..6).for_each(|_| schedule.add_failure(Duration::ZERO));
        assert_eq!(schedule.retry_pause().as_secs(), 32);
        schedule.start_stop_limit();
        assert_eq!(schedule.retry_pause(), MAX_STOP_BACKOFF);
    }

    /// The whole job was suspended for an hour, more than any limit.
    #[test]
    fn a_suspension_does_not_count_towards_the_limits() {
        let mut config = RunConfig::default();
        config.checkpoint.give_up_minutes = 5.0;
        let mut schedule = SaveSchedule::new(&config);
        let began = schedule.begin();
        schedule.start_stop_limit();
        schedule.clock.insert_gap(Duration::from_secs(3600));
        assert_eq!(schedule.timing(began), SaveTiming::InTime);
        let failing = schedule.retry_state.failing_for(began, schedule.clock.now());
        assert!(failing < Duration::from_secs(60) && !schedule.is_due_by_time(), "{failing:?}");
    }

    #[test]
    fn after_a_failure_the_backoff_replaces_the_interval() {
        let mut schedule = schedule(5, 1e-9);
        std::thread::sleep(Duration::from_millis(1));
        assert!(schedule.is_due_by_time());
        let began = schedule.begin();
        schedule.add_failure(began);
        assert!(!schedule.is_due_by_time() && !schedule.update_due(10, false));
        schedule.clear_failures();
        assert!(schedule.update_due(10, false));
    }
}
