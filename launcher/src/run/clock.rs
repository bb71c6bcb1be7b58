//! Coordinator clock: durations without the time during which the process was suspended, and the time of day.

use std::time::{Duration, Instant};

use crate::decide::Seconds;
use crate::host;

/// Interval between ticks.
const TICK: Duration = Duration::from_millis(50);
/// Time between ticks above which the process must have been suspended. The coordinator itself never blocks that long.
const STOPPED: Duration = Duration::from_secs(10);
/// Time between ticks above which the coordinator may have been suspended.
const PAUSED: Duration = Duration::from_secs(1);

/// Difference from the system clock, seconds, above which the clock follows it.
const DIFFERENCE: f64 = 2.0;

/// Time since the coordinator started, without the time for which its process was suspended, e.g. with its Slurm job.
/// A suspended coordinator receives no reports. The time is that of the monotonic clock. This clock also stands still
/// while the machine is suspended, and does not jump when somebody sets the system clock.
#[derive(Debug)]
pub struct Clock {
    begun: Instant,
    /// Time of the last tick.
    ticked: Instant,
    /// See [`Clock::unix`].
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

    /// Time of day minus [`Clock::seconds`], seconds since the Unix epoch. Without suspensions and changes of the system
    /// clock, this is the start time. The sum of both is the time of day at the last tick, to within two seconds.
    pub fn unix(&self) -> f64 {
        self.unix
    }

    /// Time until the next tick.
    pub fn until_tick(&self) -> Duration {
        TICK.saturating_sub(self.ticked.elapsed())
    }

    /// Advances to the next tick, excludes a suspension, and follows the system clock. Returns the seconds since the last
    /// tick if the process may have been suspended.
    pub fn tick(&mut self) -> Option<Seconds> {
        let passed = self.ticked.elapsed();
        self.ticked = Instant::now();
        if passed > STOPPED {
            self.begun += passed;
            self.unix += passed.as_secs_f64();
            tracing::info!("the coordinator was suspended for {:.0} s; continuing", passed.as_secs_f64());
        }
        self.follow(host::now());
        (passed > PAUSED).then_some(passed.as_secs_f64())
    }

    /// Follows the system clock, which shows `now`. [`Clock::seconds`] stays the same.
    fn follow(&mut self, now: f64) {
        let difference = now - (self.unix + self.seconds());
        if difference.abs() > DIFFERENCE {
            self.unix += difference;
            tracing::info!(
                "the system clock was changed by {difference:+.0} s, or the machine was suspended; continuing"
            );
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
        // The process runs for 60 s and is then suspended for 40 s.
        (clock.begun, clock.ticked) = (before, before + Duration::from_secs(60));
        clock.unix -= 100.0;
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

    #[test]
    fn the_time_of_day_follows_the_system_clock() {
        let mut clock = Clock::start();
        let unix = clock.unix();
        for change in [3600.0, -86_400.0] {
            // The machine was suspended, or the system clock was set.
            clock.follow(host::now() + change);
            assert!((clock.unix() - unix - change).abs() < 5.0, "{}", clock.unix() - unix);
            assert!(clock.seconds() < 5.0, "{}", clock.seconds());
        }
        assert_eq!(clock.tick(), None);
        assert!((clock.unix() - unix).abs() < 5.0, "a tick reads the system clock");
        let unix = clock.unix();
        clock.follow(unix + clock.seconds() + 1.0);
        assert!((clock.unix() - unix).abs() < 1e-6, "a small difference stays");
    }
}
