//! Coordinator clock that excludes time during which the process was suspended.

use std::time::{Duration, Instant};

use crate::decide::Seconds;
use crate::host;

/// Interval between ticks.
const TICK: Duration = Duration::from_millis(50);
/// Time between ticks above which the process must have been suspended. The coordinator itself never blocks that long.
const STOPPED: Duration = Duration::from_secs(10);
/// Time between ticks above which the coordinator may have been suspended.
const PAUSED: Duration = Duration::from_secs(1);

/// Time since the coordinator started, without the time for which its process was suspended, e.g. with its Slurm job.
/// A suspended coordinator receives no reports.
#[derive(Debug)]
pub struct Clock {
    begun: Instant,
    /// Time of the last tick.
    ticked: Instant,
    /// Start time, seconds since the Unix epoch, plus the time for which the process was suspended.
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

    /// Start time, seconds since the Unix epoch, plus the time for which the process was suspended. The sum of this
    /// value and [`Clock::seconds`] is the current time.
    pub fn unix(&self) -> f64 {
        self.unix
    }

    /// Time until the next tick.
    pub fn until_tick(&self) -> Duration {
        TICK.saturating_sub(self.ticked.elapsed())
    }

    /// Advances to the next tick and excludes a suspension. Returns the seconds since the last tick if they were so many
    /// that the process may have been suspended.
    pub fn tick(&mut self) -> Option<Seconds> {
        let passed = self.ticked.elapsed();
        self.ticked = Instant::now();
        if passed > STOPPED {
            self.begun += passed;
            self.unix += passed.as_secs_f64();
            tracing::info!("the coordinator was suspended for {:.0} s; continuing", passed.as_secs_f64());
        }
        (passed > PAUSED).then_some(passed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_while_the_process_is_stopped_is_not_counted() {
        let mut clock = Clock::start();
        let Some(before) = Instant::now().checked_sub(Duration::from_secs(100)) else { return };
        // The process runs for 60 s and is then suspended for 40 s.
        (clock.begun, clock.ticked) = (before, before + Duration::from_secs(60));
        let unix = clock.unix();
        assert_eq!(clock.until_tick(), Duration::ZERO);
        let suspended = clock.tick().unwrap();
        assert!((suspended - 40.0).abs() < 5.0, "{suspended}");
        assert!((clock.seconds() - 60.0).abs() < 5.0, "{}", clock.seconds());
        assert!((clock.unix() - unix - 40.0).abs() < 5.0, "{}", clock.unix() - unix);
        assert!(clock.until_tick() > Duration::ZERO);
        assert_eq!(clock.tick(), None);
        assert!((clock.seconds() - 60.0).abs() < 5.0, "a short while counts");
    }
}
