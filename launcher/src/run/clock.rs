//! Coordinator clock that excludes time during which the process was suspended.

use std::time::{Duration, Instant};

use crate::decide::Seconds;
use crate::host;

/// Interval between ticks.
const TICK: Duration = Duration::from_millis(50);
/// The coordinator never blocks this long: a longer gap between ticks means that the process was suspended.
const STOPPED: Duration = Duration::from_secs(10);

/// Time since the coordinator started, excluding suspension (e.g. of a Slurm job), during which no rank reports are received.
#[derive(Debug)]
pub struct Clock {
    begun: Instant,
    /// Time of the last tick.
    ticked: Instant,
    /// Start time, seconds since the Unix epoch, shifted by the time suspended.
    unix: f64,
}

impl Clock {
    /// Starts the clock.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { begun: now, ticked: now, unix: host::now() }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> Seconds {
        self.begun.elapsed().as_secs_f64()
    }

    /// Start time, seconds since the Unix epoch, such that adding [`Clock::seconds`] gives the current time.
    pub fn unix(&self) -> f64 {
        self.unix
    }

    /// Time until the next tick.
    pub fn until_tick(&self) -> Duration {
        TICK.saturating_sub(self.ticked.elapsed())
    }

    /// Advances to the next tick and excludes a suspension.
    pub fn tick(&mut self) {
        let passed = self.ticked.elapsed();
        self.ticked = Instant::now();
        if passed > STOPPED {
            self.begun += passed;
            self.unix += passed.as_secs_f64();
            tracing::info!("the coordinator was suspended for {:.0} s; continuing", passed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_while_the_process_is_stopped_is_not_counted() {
        let mut clock = Clock::start();
        let Some(before) = Instant::now().checked_sub(Duration::from_secs(100)) else { return };
        // Running for 60 s, then suspended for 40 s.
        (clock.begun, clock.ticked) = (before, before + Duration::from_secs(60));
        let unix = clock.unix();
        assert_eq!(clock.until_tick(), Duration::ZERO);
        clock.tick();
        assert!((clock.seconds() - 60.0).abs() < 5.0, "{}", clock.seconds());
        assert!((clock.unix() - unix - 40.0).abs() < 5.0, "{}", clock.unix() - unix);
        assert!(clock.until_tick() > Duration::ZERO);
        clock.tick();
        assert!((clock.seconds() - 60.0).abs() < 5.0, "a short while counts");
    }
}
