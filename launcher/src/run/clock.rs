//! The coordinator's clock, which stands still while its process is stopped.

use std::time::{Duration, Instant};

use crate::decide::Seconds;
use crate::host;

/// How often time passes.
const TICK: Duration = Duration::from_millis(50);
/// Nothing that the coordinator does takes so long: if time did not pass meanwhile, the process was stopped.
const STOPPED: Duration = Duration::from_secs(10);

/// The time since a coordinator began, without that in which its process was stopped (a job that is suspended): ranks were not heard
/// in it.
#[derive(Debug)]
pub struct Clock {
    begun: Instant,
    /// When time passed last.
    ticked: Instant,
    /// When it began, seconds since 1970; later by the time that the process was stopped since.
    unix: f64,
}

impl Clock {
    /// Begins.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { begun: now, ticked: now, unix: host::now() }
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> Seconds {
        self.begun.elapsed().as_secs_f64()
    }

    /// Seconds from 1970 to the beginning: [`Clock::seconds`] later it is now.
    pub fn unix(&self) -> f64 {
        self.unix
    }

    /// How long until time is to pass again.
    pub fn until_tick(&self) -> Duration {
        TICK.saturating_sub(self.ticked.elapsed())
    }

    /// Lets time pass.
    pub fn tick(&mut self) {
        let passed = self.ticked.elapsed();
        self.ticked = Instant::now();
        if passed > STOPPED {
            self.begun += passed;
            self.unix += passed.as_secs_f64();
            tracing::info!("this coordinator was stopped for {:.0} s, and goes on", passed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let mut clock = Clock::start();
        let Some(before) = Instant::now().checked_sub(Duration::from_secs(100)) else { return };
        // Running for 60 s, stopped for 40 s since.
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
