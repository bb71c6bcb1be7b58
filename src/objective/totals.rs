//! The losses of a step or an evaluation, added up: sums over samples and ranks.

use lambert_control::{Score, Scores};
use lambert_plan::objectives::{self, TargetKind};

/// The sums of one loss over all its targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossTotals {
    /// The loss.
    pub of: objectives::LossSpec,
    /// Sum of the loss, nats.
    pub loss: f64,
    /// Targets that were predicted; 0 if the loss has no accuracy.
    pub correct: f64,
    /// Targets.
    pub targets: f64,
}

impl LossTotals {
    /// Mean over the targets, nats; `None` if there were none.
    pub fn mean_loss(self) -> Option<f64> {
        (self.targets > 0.0).then(|| self.loss / self.targets)
    }

    /// Share of the targets that were predicted; `None` if there were none, or if the loss has no accuracy.
    pub fn accuracy(self) -> Option<f64> {
        (self.of.has_accuracy && self.targets > 0.0).then(|| self.correct / self.targets)
    }
}

/// Sums over the samples of some micro-batches; over all ranks once their numbers went through an all-reduce.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Of each loss of the run, in the order of its passes.
    pub losses: Vec<LossTotals>,
    /// Digests of the samples as they were fed; exact, because each has 32 bits.
    pub digest: f64,
}

impl Totals {
    /// Of no samples.
    pub fn new(losses: impl IntoIterator<Item = objectives::LossSpec>) -> Self {
        let zero = |of| LossTotals { of, loss: 0.0, correct: 0.0, targets: 0.0 };
        Self { losses: losses.into_iter().map(zero).collect(), digest: 0.0 }
    }

    /// How many numbers they are.
    fn len(&self) -> usize {
        3 * self.losses.len() + 1
    }

    /// The sums as numbers that can be added up over ranks.
    fn numbers(&self) -> Vec<f64> {
        let of_losses = self.losses.iter().flat_map(|sums| [sums.loss, sums.correct, sums.targets]);
        of_losses.chain([self.digest]).collect()
    }

    /// Adds what [`Totals::numbers`] gave of others with the same losses.
    fn add_numbers(&mut self, numbers: &[f64]) {
        assert_eq!(numbers.len(), self.len(), "totals of other losses");
        for (sums, numbers) in self.losses.iter_mut().zip(numbers.chunks_exact(3)) {
            sums.loss += numbers[0];
            sums.correct += numbers[1];
            sums.targets += numbers[2];
        }
        self.digest += numbers[numbers.len() - 1];
    }

    /// Adds others with the same losses.
    pub fn add(&mut self, other: &Self) {
        self.add_numbers(&other.numbers());
    }

    /// Totals of some parts of a global batch, from part `first` on, as numbers of which a sum over the ranks makes those of all
    /// `parts`, each in a place of its own. `zero` has the same losses.
    pub fn in_places(zero: &Self, own: &[Self], first: usize, parts: usize) -> Vec<f64> {
        let length = zero.len();
        let mut numbers = vec![0.0; length * parts];
        for (place, totals) in numbers.chunks_exact_mut(length).skip(first).zip(own) {
            place.copy_from_slice(&totals.numbers());
        }
        numbers
    }

    /// The sum of the totals in all places, in their order. `zero` has the same losses.
    pub fn of_places(zero: &Self, numbers: &[f64]) -> Self {
        let mut sum = zero.clone();
        numbers.chunks_exact(zero.len()).for_each(|place| sum.add_numbers(place));
        sum
    }

    /// Those of one loss; of no targets if the run does not have it.
    pub fn of(&self, loss: objectives::LossSpec) -> LossTotals {
        let found = self.losses.iter().find(|sums| sums.of == loss).copied();
        found.unwrap_or(LossTotals { of: loss, loss: 0.0, correct: 0.0, targets: 0.0 })
    }

    /// The total loss, nats: the weighted sum of the means of all losses that had targets.
    pub fn total_loss(&self) -> f64 {
        self.losses.iter().filter_map(|sums| Some(sums.of.weight * sums.mean_loss()?)).sum()
    }

    /// Masked tokens.
    pub fn masked_tokens(&self) -> u64 {
        let of_masked = self.losses.iter().find(|sums| sums.of.targets == TargetKind::MaskedTokens);
        of_masked.map_or(0, |sums| sums.targets as u64)
    }

    /// Mean losses and accuracies of the losses that had targets.
    pub fn scores(&self) -> Scores {
        let score = |sums: &LossTotals| {
            Some(Score { name: sums.of.name.to_owned(), loss: sums.mean_loss()?, accuracy: sums.accuracy() })
        };
        self.losses.iter().filter_map(score).collect()
    }
}

#[cfg(test)]
mod tests {
    use lambert_plan::objectives::{MASKED_LANGUAGE, PAIR};

    use super::*;

    fn totals(numbers: [f64; 7]) -> Totals {
        let mut totals = Totals::new([MASKED_LANGUAGE, PAIR]);
        totals.add_numbers(&numbers);
        totals
    }

    #[test]
    fn a_sum_over_places_is_the_sum_of_all_parts() {
        let (one, other) = (totals([6.0, 1.0, 2.0, 3.0, 1.0, 4.0, 7.0]), totals([2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 5.0]));
        let zero = Totals::new([MASKED_LANGUAGE, PAIR]);
        let mut places = Totals::in_places(&zero, std::slice::from_ref(&one), 0, 3);
        let others = Totals::in_places(&zero, std::slice::from_ref(&other), 2, 3);
        places.iter_mut().zip(others).for_each(|(sum, number)| *sum += number);
        let all = Totals::of_places(&zero, &places);
        assert_eq!(all, totals([8.0, 2.0, 4.0, 3.0, 1.0, 4.0, 12.0]));
        assert_eq!((all.of(MASKED_LANGUAGE).mean_loss(), all.of(PAIR).accuracy()), (Some(2.0), Some(0.25)));
        assert_eq!((all.masked_tokens(), all.total_loss()), (4, 2.75));
        assert_eq!(zero.scores(), Scores::default());
    }

    #[test]
    fn a_weight_scales_the_part_of_its_loss() {
        let heavy = objectives::LossSpec { name: "heavy", weight: 50.0, has_accuracy: false, ..PAIR };
        let mut totals = Totals::new([MASKED_LANGUAGE, heavy]);
        totals.add_numbers(&[6.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.0]);
        assert_eq!(totals.total_loss(), 3.0 + 50.0 * 0.75);
        let score = totals.scores().get("heavy").cloned().unwrap();
        assert_eq!((score.loss, score.accuracy), (0.75, None));
    }
}
