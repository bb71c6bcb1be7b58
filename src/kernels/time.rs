//! Times on the clock of a device.

use std::time::Instant;

use crate::torch::gpu::TimeEvent;

/// Time at which a device completes the work that was enqueued before.
pub enum TimeMark {
    /// Clock of the host, for devices whose calls return after their work.
    Host(Instant),
    /// Event of a GPU.
    Gpu(TimeEvent),
}

impl TimeMark {
    /// Current time of the host.
    pub fn now() -> Self {
        Self::Host(Instant::now())
    }

    /// Waits for the work before both marks and returns the seconds since `earlier`, a mark of the same device.
    pub fn seconds_since(&self, earlier: &Self) -> f64 {
        match (earlier, self) {
            (Self::Host(from), Self::Host(to)) => to.duration_since(*from).as_secs_f64(),
            (Self::Gpu(from), Self::Gpu(to)) => to.seconds_since(from),
            _ => unreachable!("the marks are of different devices"),
        }
    }
}
