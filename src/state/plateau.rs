//! Plateau detection on the held-out loss, which ends a stage early.

use lambert_config::run::Plateau;
use serde::{Deserialize, Serialize};

/// Plateau detector of a stage, which is part of the training state. The loss is f32, which JSON preserves exactly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlateauTracker {
    /// Reference loss, nats: the latest loss that improved by more than `min_delta`, or the first loss.
    lowest: Option<f32>,
    /// Number of evaluations since the last improvement by more than `min_delta`.
    flat: u64,
}

impl PlateauTracker {
    /// True before the first evaluation.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a held-out loss and returns true at a plateau. A non-finite loss counts as no improvement.
    pub fn add_loss(&mut self, plateau: &Plateau, loss: f64) -> bool {
        let improves =
            loss.is_finite() && self.lowest.is_none_or(|lowest| loss < f64::from(lowest) - plateau.min_delta);
        if improves {
            (self.lowest, self.flat) = (Some(loss as f32), 0);
        } else {
            self.flat += 1;
        }
        self.flat >= plateau.evaluations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plateau_is_several_evaluations_without_improvement() {
        let plateau = Plateau { evaluations: 2, min_delta: 0.1 };
        let flat = |losses: &[f64]| {
            let mut tracker = PlateauTracker::default();
            losses.iter().map(|loss| tracker.add_loss(&plateau, *loss)).collect::<Vec<_>>()
        };
        assert_eq!(
            flat(&[5.0, 4.95, 4.92]),
            [false, false, true],
            "less than min_delta below the lowest, in two steps"
        );
        assert_eq!(flat(&[5.0, 4.95, 4.8, 4.9, 4.75]), [false, false, false, false, true]);
        assert_eq!(flat(&[5.0, 4.95, 4.89, 4.85]), [false; 4], "small falls add up");
        assert_eq!(flat(&[5.0, f64::NAN, f64::NAN]), [false, false, true]);
        assert_eq!(flat(&[f64::NAN, 5.0, 4.95, f64::INFINITY]), [false, false, false, true]);
        let plateau = Plateau { evaluations: 1, min_delta: 0.0 };
        let mut tracker = PlateauTracker::default();
        assert!(
            !tracker.add_loss(&plateau, 5.0) && !tracker.add_loss(&plateau, 4.9) && tracker.add_loss(&plateau, 4.95)
        );
    }

    #[test]
    fn tracker_round_trips_through_json() {
        let mut tracker = PlateauTracker::default();
        for loss in [f64::NAN, 6.123_456_789, 5.1, 5.0999, 1.0 / 3.0] {
            tracker.add_loss(&Plateau::default(), loss);
            let text = serde_json::to_string(&tracker).unwrap();
            assert_eq!(serde_json::from_str::<PlateauTracker>(&text).unwrap(), tracker, "{text}");
        }
    }
}
