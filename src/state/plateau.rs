//! Whether the held-out loss is flat, so that a stage ends before its last step.

use lambert_config::run::Plateau;
use serde::{Deserialize, Serialize};

/// What the evaluations of a stage so far have shown; part of the training state. The loss is f32, which passes through JSON
/// unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// The held-out MLM loss that the next has to stay `min_delta` below, nats: the last that did so, or the first.
    lowest: Option<f32>,
    /// Evaluations since one was lower by `min_delta`.
    flat: u64,
}

impl Watched {
    /// Whether nothing has been seen.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in a held-out loss. Returns whether the loss is flat; one that is no number counts as no fall.
    pub fn is_flat(&mut self, plateau: &Plateau, loss: f64) -> bool {
        let falls = loss.is_finite() && self.lowest.is_none_or(|lowest| loss < f64::from(lowest) - plateau.min_delta);
        if falls {
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
    fn flat_is_so_many_evaluations_without_a_fall() {
        let plateau = Plateau { evaluations: 2, min_delta: 0.1 };
        let flat = |losses: &[f64]| {
            let mut watched = Watched::default();
            losses.iter().map(|loss| watched.is_flat(&plateau, *loss)).collect::<Vec<_>>()
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
        let mut watched = Watched::default();
        assert!(!watched.is_flat(&plateau, 5.0) && !watched.is_flat(&plateau, 4.9) && watched.is_flat(&plateau, 4.95));
    }

    #[test]
    fn what_was_seen_passes_through_json_unchanged() {
        let mut watched = Watched::default();
        for loss in [f64::NAN, 6.123_456_789, 5.1, 5.0999, 1.0 / 3.0] {
            watched.is_flat(&Plateau::default(), loss);
            let text = serde_json::to_string(&watched).unwrap();
            assert_eq!(serde_json::from_str::<Watched>(&text).unwrap(), watched, "{text}");
        }
    }
}
