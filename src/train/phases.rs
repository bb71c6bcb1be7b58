//! Times of the phases of a step, measured on the device. A GPU runs work after the host has enqueued it, so a host
//! clock would measure only the enqueueing.

use crate::kernels::{Kernels, TimeMark};
use crate::torch::{self, TorchError};

/// Phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Forward and backward passes.
    ForwardBackward,
    /// All-reduce that does not overlap with the passes.
    Communication,
    /// Update of the weights.
    Optimizer,
}

/// Measures the phases of a step.
pub struct PhaseClock<'a> {
    kernels: &'a dyn Kernels,
    start: TimeMark,
    /// Phases in their order, with their ends.
    laps: Vec<(Phase, TimeMark)>,
}

impl<'a> PhaseClock<'a> {
    /// Starts the first phase.
    ///
    /// # Errors
    /// The device fails.
    pub fn start(kernels: &'a dyn Kernels) -> Result<Self, TorchError> {
        Ok(Self { kernels, start: torch::guard(|| kernels.mark_time())?, laps: Vec::new() })
    }

    /// Ends `phase` and starts the next one. Does not wait for the device.
    ///
    /// # Errors
    /// The device fails.
    pub fn end(&mut self, phase: Phase) -> Result<(), TorchError> {
        self.laps.push((phase, torch::guard(|| self.kernels.mark_time())?));
        Ok(())
    }

    /// Returns the seconds of each phase. Waits until the device has completed the last phase.
    ///
    /// # Errors
    /// The device fails.
    pub fn seconds(self) -> Result<PhaseSeconds, TorchError> {
        torch::guard(|| {
            let (mut seconds, mut from) = (PhaseSeconds::default(), &self.start);
            for (phase, to) in &self.laps {
                *seconds.of(*phase) += to.seconds_since(from);
                from = to;
            }
            seconds
        })
    }
}

/// Seconds of each phase of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PhaseSeconds {
    pub forward_backward: f64,
    pub communication: f64,
    pub optimizer: f64,
}

impl PhaseSeconds {
    fn of(&mut self, phase: Phase) -> &mut f64 {
        match phase {
            Phase::ForwardBackward => &mut self.forward_backward,
            Phase::Communication => &mut self.communication,
            Phase::Optimizer => &mut self.optimizer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::kernels::Host;

    #[test]
    fn times_of_a_phase_are_added() {
        let mut clock = PhaseClock::start(&Host).unwrap();
        for (phase, milliseconds) in [
            (Phase::ForwardBackward, 20),
            (Phase::Communication, 0),
            (Phase::ForwardBackward, 30),
            (Phase::Optimizer, 10),
        ] {
            sleep(Duration::from_millis(milliseconds));
            clock.end(phase).unwrap();
        }
        let seconds = clock.seconds().unwrap();
        assert!(seconds.forward_backward >= 0.05 && seconds.optimizer >= 0.01, "{seconds:?}");
        assert!(seconds.communication < seconds.forward_backward, "{seconds:?}");
    }
}
