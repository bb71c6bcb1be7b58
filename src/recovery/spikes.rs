//! Spikes of the loss and of the gradient norm, as OLMo-core counts them. A value is a spike if it exceeds the mean of the
//! 128 values before it by more than six of their standard deviations.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Number of values with which a value is compared.
const WINDOW: usize = 128;
/// Distance of a spike from the mean, in standard deviations.
const DEVIATIONS: f64 = 6.0;
/// Standard deviation below which nothing is a spike.
const MIN_DEVIATION: f64 = 1e-10;

/// Latest losses and gradient norms of a stage, and the spikes of the run. It is part of the training state. The values are
/// f32, which JSON preserves exactly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SpikeHistory {
    /// Latest finite losses of the stage, nats, oldest first.
    losses: VecDeque<f32>,
    /// Latest finite gradient norms of the stage, oldest first.
    norms: VecDeque<f32>,
    /// Number of steps with a spike.
    spikes: u64,
    /// Number of steps.
    steps: u64,
}

impl SpikeHistory {
    /// True if there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Forgets the values, because those of another stage differ. Keeps the numbers of spikes and steps.
    pub fn start_stage(&mut self) {
        self.losses.clear();
        self.norms.clear();
    }

    /// Adds a step. Returns true if its loss or its gradient norm is a spike. A non-finite value is a spike.
    pub fn add(&mut self, loss: f64, norm: f64) -> bool {
        let is_spike = add(&mut self.losses, loss) | add(&mut self.norms, norm);
        self.steps += 1;
        self.spikes += u64::from(is_spike);
        is_spike
    }

    /// Returns the fraction of the steps that have a spike. `None` before the window is full.
    pub fn score(&self) -> Option<f64> {
        (self.steps >= WINDOW as u64).then(|| self.spikes as f64 / self.steps as f64)
    }
}

/// Adds a value to a window. Returns true if the value is a spike.
fn add(window: &mut VecDeque<f32>, value: f64) -> bool {
    if !value.is_finite() {
        return true;
    }
    let is_spike = window.len() == WINDOW && exceeds(window, value);
    window.push_back(value as f32);
    window.drain(..window.len().saturating_sub(WINDOW));
    is_spike
}

fn exceeds(window: &VecDeque<f32>, value: f64) -> bool {
    let count = window.len() as f64;
    let mean = window.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let variance = window.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count;
    let deviation = variance.sqrt();
    deviation >= MIN_DEVIATION && value > mean + DEVIATIONS * deviation
}

#[cfg(test)]
mod tests {
    use super::*;

    /// History of `steps` steps with losses of mean 5 and standard deviation 0.1, and norms of mean 1 and deviation 0.2.
    fn history(steps: u64) -> SpikeHistory {
        let mut history = SpikeHistory::default();
        for step in 0..steps {
            let sign = if step % 2 == 0 { 1.0 } else { -1.0 };
            assert!(!history.add(5.0 + 0.1 * sign, 1.0 + 0.2 * sign));
        }
        history
    }

    #[test]
    fn values_six_deviations_above_the_mean_are_spikes() {
        for (loss, norm, expected) in
            [(5.59, 2.19, false), (5.61, 1.0, true), (5.0, 2.21, true), (f64::NAN, 1.0, true), (-9.0, 0.0, false)]
        {
            assert_eq!(history(200).add(loss, norm), expected, "{loss} {norm}");
            assert_eq!(history(127).add(loss, norm), !loss.is_finite(), "the window is not full");
        }
        let mut flat = SpikeHistory::default();
        (0..200).for_each(|_| assert!(!flat.add(3.0, 1.0)));
        assert!(!flat.add(4.0, 1.0), "without variance nothing is a spike");
    }

    #[test]
    fn the_score_is_the_fraction_of_steps() {
        assert_eq!(history(127).score(), None);
        let mut history = history(199);
        assert!(history.add(50.0, 1.0));
        assert_eq!(history.score(), Some(1.0 / 200.0));
        // Spikes are part of the window. Among 128 values, the fifth equal one is within six deviations.
        assert!((0..3).all(|_| history.add(50.0, 1.0)));
        assert!(!history.add(50.0, 1.0));
        history.start_stage();
        assert!(!history.add(500.0, 1.0), "a new stage has its own values");
        assert_eq!(history.score(), Some(4.0 / 205.0));
    }

    #[test]
    fn histories_round_trip_through_json() {
        let mut history = history(150);
        for step in 0..300_u32 {
            history.add(10.0 / f64::from(step + 1).ln_1p(), 1.0 / 3.0 * f64::from(step));
            let read: SpikeHistory = serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
            assert_eq!(read, history);
        }
    }
}
