//! Training throughput.

use std::collections::VecDeque;

use lambert_control::StepRecord;

/// Maximum number of recent steps in the average.
const WINDOW: usize = 50;

/// Throughput averaged over recent steps.
#[derive(Debug, Default)]
pub struct Throughput {
    steps: VecDeque<(u64, f64)>,
}

impl Throughput {
    /// Adds a step.
    pub fn add(&mut self, record: &StepRecord) {
        self.steps.push_back((record.batch.samples, record.times.seconds));
        if self.steps.len() > WINDOW {
            self.steps.pop_front();
        }
    }

    /// Samples per second. 0 before the first step.
    pub fn samples_per_second(&self) -> f64 {
        let samples: u64 = self.steps.iter().map(|(samples, _)| samples).sum();
        if self.seconds() > 0.0 { samples as f64 / self.seconds() } else { 0.0 }
    }

    /// Estimated seconds for `left` steps. `None` before the first step.
    pub fn seconds_for(&self, left: u64) -> Option<f64> {
        (!self.steps.is_empty()).then(|| left as f64 * self.seconds() / self.steps.len() as f64)
    }

    fn seconds(&self) -> f64 {
        self.steps.iter().map(|(_, seconds)| seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use lambert_control::{BatchStats, StepTimes};

    use super::*;

    #[test]
    fn speed_is_averaged_over_a_window() {
        let mut throughput = Throughput::default();
        assert_eq!((throughput.samples_per_second(), throughput.seconds_for(10)), (0.0, None));
        for step in 0..200 {
            let batch = BatchStats { samples: 64, ..BatchStats::default() };
            let times = StepTimes { seconds: if step < 150 { 100.0 } else { 1.0 }, ..StepTimes::default() };
            throughput.add(&StepRecord { batch, times, ..StepRecord::default() });
        }
        assert_eq!((throughput.samples_per_second(), throughput.seconds_for(10)), (64.0, Some(10.0)));
    }
}
