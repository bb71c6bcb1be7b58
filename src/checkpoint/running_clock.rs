//! Clock of the time limits of saves. It leaves out time for which the process was suspended, e.g. with its Slurm job.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Interval of ticks.
const TICK: Duration = Duration::from_secs(1);
/// Longest time between two ticks that counts in full. A busy host may delay a tick by seconds.
const MAX_TICK: Duration = Duration::from_secs(5);

/// Time since the clock was started, without suspensions.
#[derive(Debug)]
pub struct RunningClock(Arc<Mutex<ClockState>>);

#[derive(Debug)]
struct ClockState {
    /// Time of the last tick or reading.
    last: Instant,
    counted: Duration,
    /// Longest gap that counts in full.
    longest: Duration,
}

impl ClockState {
    fn advance(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.last).min(self.longest);
        self.last = now;
        self.counted
    }
}

fn advance(state: &Mutex<ClockState>) -> Duration {
    state.lock().unwrap_or_else(PoisonError::into_inner).advance(Instant::now())
}

impl RunningClock {
    /// Starts the clock and a thread for its ticks. Without the thread, suspensions count.
    pub fn start() -> Self {
        let state =
            Arc::new(Mutex::new(ClockState { last: Instant::now(), counted: Duration::ZERO, longest: MAX_TICK }));
        let ticked = Arc::downgrade(&state);
        if let Err(error) = std::thread::Builder::new().name("clock".to_owned()).spawn(move || tick(&ticked)) {
            tracing::warn!("suspensions count towards the time limits of saves: cannot start a thread: {error}");
            state.lock().unwrap_or_else(PoisonError::into_inner).longest = Duration::MAX;
        }
        Self(state)
    }

    /// Time since the start, without suspensions.
    pub fn now(&self) -> Duration {
        advance(&self.0)
    }

    /// Time since `earlier`, a time of this clock.
    pub fn since(&self, earlier: Duration) -> Duration {
        self.now().saturating_sub(earlier)
    }

    /// Lets the clock appear as after a gap between two ticks.
    #[cfg(test)]
    pub fn insert_gap(&self, gap: Duration) {
        let mut state = self.0.lock().unwrap();
        state.last = state.last.checked_sub(gap).unwrap();
    }
}

/// Ticks until the clock is dropped.
fn tick(state: &Weak<Mutex<ClockState>>) {
    while let Some(state) = state.upgrade() {
        advance(&state);
        drop(state);
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_does_not_count() {
        let begun = Instant::now();
        let mut state = ClockState { last: begun, counted: Duration::ZERO, longest: MAX_TICK };
        let mut now = begun;
        for _ in 0..600 {
            now += TICK;
            state.advance(now);
        }
        assert_eq!(state.counted, 600 * TICK);
        now += Duration::from_secs(3600);
        assert_eq!(state.advance(now), 600 * TICK + MAX_TICK);
        assert_eq!(state.advance(begun), 600 * TICK + MAX_TICK, "an earlier time adds nothing");
    }

    #[test]
    fn the_thread_ticks_until_the_clock_is_dropped() {
        let clock = RunningClock::start();
        let state = Arc::downgrade(&clock.0);
        std::thread::sleep(2 * TICK);
        assert!(clock.0.lock().unwrap().last.elapsed() < 2 * TICK, "nobody has read the clock");
        assert!(clock.now() >= 2 * TICK);
        drop(clock);
        let start = Instant::now();
        while state.upgrade().is_some() {
            assert!(start.elapsed() < 10 * TICK);
            std::thread::sleep(TICK / 10);
        }
    }
}
