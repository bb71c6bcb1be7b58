//! Elapsed time between points of a step.

use std::time::Instant;

/// Measures consecutive intervals.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts the first interval.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the seconds since the start or the last lap, and starts the next interval.
    pub fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}
