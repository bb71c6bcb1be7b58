//! Loss totals of a step or an evaluation, over samples and ranks.

use lambert_control::{Score, Scores};
use lambert_plan::objectives::{self, TargetKind};

/// Totals of one loss over its targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossTotals {
    /// Description of the loss.
    pub description: objectives::LossSpec,
    /// Sum of the loss, nats.
    pub loss: f64,
    /// Number of correct predictions; 0 if the loss has no accuracy.
    pub correct: f64,
    /// Number of targets.
    pub targets: f64,
    /// Counts of a detection; 0 for other losses.
    pub detection: DetectionCounts,
}

/// Counts of the positive targets of a detection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DetectionCounts {
    /// Positive targets.
    pub targets: f64,
    /// Positive predictions.
    pub predictions: f64,
    /// Positive predictions of positive targets.
    pub both: f64,
}

/// Numbers of a loss in [`ObjectiveTotals::numbers`].
const NUMBERS: usize = 6;

impl LossTotals {
    fn zero(description: objectives::LossSpec) -> Self {
        Self { description, loss: 0.0, correct: 0.0, targets: 0.0, detection: DetectionCounts::default() }
    }

    /// Mean over the targets, nats; `None` without targets.
    pub fn mean_loss(self) -> Option<f64> {
        (self.targets > 0.0).then(|| self.loss / self.targets)
    }

    /// Fraction of correct predictions; `None` without targets, or if the loss has no accuracy.
    pub fn accuracy(self) -> Option<f64> {
        (self.description.has_accuracy && self.targets > 0.0).then(|| self.correct / self.targets)
    }

    /// Fraction of positive predictions that are right; `None` without positive predictions.
    fn precision(self) -> Option<f64> {
        (self.detection.predictions > 0.0).then(|| self.detection.both / self.detection.predictions)
    }

    /// Fraction of positive targets that are predicted; `None` without positive targets.
    fn recall(self) -> Option<f64> {
        (self.detection.targets > 0.0).then(|| self.detection.both / self.detection.targets)
    }
}

/// Totals of all losses over micro-batches. After an all-reduce, the totals are over all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectiveTotals {
    /// Totals of each loss, in the order of the passes.
    pub losses: Vec<LossTotals>,
    /// Sum of the sample digests. The sum is exact in f64, because each digest has 32 bits.
    pub digest: f64,
    /// Sum of the digests of the tokens that the generator drew: 24 bits for each token. 0 without a generator.
    pub drawn_digest: f64,
}

impl ObjectiveTotals {
    /// Creates zero totals.
    pub fn new(losses: impl IntoIterator<Item = objectives::LossSpec>) -> Self {
        Self { losses: losses.into_iter().map(LossTotals::zero).collect(), digest: 0.0, drawn_digest: 0.0 }
    }

    /// Length of [`ObjectiveTotals::numbers`].
    fn len(&self) -> usize {
        NUMBERS * self.losses.len() + 2
    }

    /// Flattens the totals to numbers that an all-reduce can sum.
    fn numbers(&self) -> Vec<f64> {
        let of_losses = self.losses.iter().flat_map(|sums| {
            let LossTotals { loss, correct, targets, detection, .. } = *sums;
            [loss, correct, targets, detection.targets, detection.predictions, detection.both]
        });
        of_losses.chain([self.digest, self.drawn_digest]).collect()
    }

    /// Adds flattened totals, which must be of the same losses.
    fn add_numbers(&mut self, numbers: &[f64]) {
        assert_eq!(numbers.len(), self.len(), "totals of different losses");
        let (of_losses, digests) = numbers.split_at(NUMBERS * self.losses.len());
        for (sums, numbers) in self.losses.iter_mut().zip(of_losses.chunks_exact(NUMBERS)) {
            let counts = &mut sums.detection;
            let fields = [&mut sums.loss, &mut sums.correct, &mut sums.targets];
            let counts = [&mut counts.targets, &mut counts.predictions, &mut counts.both];
            fields.into_iter().chain(counts).zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        self.digest += digests[0];
        self.drawn_digest += digests[1];
    }

    /// Adds totals of the same losses.
    pub fn add(&mut self, other: &Self) {
        self.add_numbers(&other.numbers());
    }

    /// Flattens the totals of this rank's shards into a buffer with one slot for each of `parts` shards.
    /// `first` is the index of this rank's first shard. An all-reduce of the buffers gathers the totals
    /// of all shards. `zero` are totals of zero for the same losses.
    pub fn scatter_shards(zero: &Self, own: &[Self], first: usize, parts: usize) -> Vec<f64> {
        let length = zero.len();
        let mut numbers = vec![0.0; length * parts];
        for (place, totals) in numbers.chunks_exact_mut(length).skip(first).zip(own) {
            place.copy_from_slice(&totals.numbers());
        }
        numbers
    }

    /// Sums the totals in all slots, in order. `zero` are totals of zero for the same losses.
    pub fn sum_shards(zero: &Self, numbers: &[f64]) -> Self {
        let mut sum = zero.clone();
        numbers.chunks_exact(zero.len()).for_each(|place| sum.add_numbers(place));
        sum
    }

    /// Totals of the loss of this name; zero if the run does not have it.
    pub fn of(&self, loss: objectives::LossSpec) -> LossTotals {
        let found = self.losses.iter().find(|sums| sums.description.name == loss.name).copied();
        found.unwrap_or(LossTotals::zero(loss))
    }

    /// Total loss, nats: the weighted sum of the mean losses.
    pub fn total_loss(&self) -> f64 {
        self.losses.iter().filter_map(|sums| Some(sums.description.weight * sums.mean_loss()?)).sum()
    }

    /// Number of masked tokens.
    pub fn masked_tokens(&self) -> u64 {
        let of_masked = self.losses.iter().find(|sums| sums.description.targets == TargetKind::MaskedTokens);
        of_masked.map_or(0, |sums| sums.targets as u64)
    }

    /// Mean losses and accuracies of the losses with targets.
    pub fn scores(&self) -> Scores {
        let score = |sums: &LossTotals| {
            Some(Score {
                name: sums.description.name.to_owned(),
                loss: sums.mean_loss()?,
                accuracy: sums.accuracy(),
                precision: sums.precision(),
                recall: sums.recall(),
            })
        };
        self.losses.iter().filter_map(score).collect()
    }
}

#[cfg(test)]
mod tests {
    use lambert_plan::objectives::{MASKED_LANGUAGE, PAIR, REPLACED_TOKENS};

    use super::*;

    /// Totals with loss, correct predictions and targets of each loss.
    fn of_losses(descriptions: [objectives::LossSpec; 2], numbers: [[f64; 3]; 2], digest: f64) -> ObjectiveTotals {
        let mut totals = ObjectiveTotals { digest, ..ObjectiveTotals::new(descriptions) };
        for (sums, [loss, correct, targets]) in totals.losses.iter_mut().zip(numbers) {
            *sums = LossTotals { loss, correct, targets, ..*sums };
        }
        totals
    }

    fn totals(numbers: [[f64; 3]; 2], digest: f64) -> ObjectiveTotals {
        of_losses([MASKED_LANGUAGE, PAIR], numbers, digest)
    }

    #[test]
    fn sum_over_shards_is_the_total() {
        let (one, other) = (totals([[6.0, 1.0, 2.0], [3.0, 1.0, 4.0]], 7.0), totals([[2.0, 1.0, 2.0], [0.0; 3]], 5.0));
        let zero = ObjectiveTotals::new([MASKED_LANGUAGE, PAIR]);
        let mut places = ObjectiveTotals::scatter_shards(&zero, std::slice::from_ref(&one), 0, 3);
        let others = ObjectiveTotals::scatter_shards(&zero, std::slice::from_ref(&other), 2, 3);
        places.iter_mut().zip(others).for_each(|(sum, number)| *sum += number);
        let all = ObjectiveTotals::sum_shards(&zero, &places);
        assert_eq!(all, totals([[8.0, 2.0, 4.0], [3.0, 1.0, 4.0]], 12.0));
        assert_eq!((all.of(MASKED_LANGUAGE).mean_loss(), all.of(PAIR).accuracy()), (Some(2.0), Some(0.25)));
        assert_eq!((all.masked_tokens(), all.total_loss()), (4, 2.75));
        assert_eq!(zero.scores(), Scores::default());
    }

    #[test]
    fn weight_scales_its_loss() {
        let heavy = objectives::LossSpec { name: "heavy", weight: 50.0, has_accuracy: false, ..PAIR };
        let totals = of_losses([MASKED_LANGUAGE, heavy], [[6.0, 1.0, 2.0], [3.0, 0.0, 4.0]], 0.0);
        assert_eq!(totals.total_loss(), 3.0 + 50.0 * 0.75);
        let score = totals.scores().get("heavy").cloned().unwrap();
        assert_eq!((score.loss, score.accuracy), (0.75, None));
    }

    #[test]
    fn precision_and_recall_of_a_detection() {
        let mut totals = ObjectiveTotals::new([MASKED_LANGUAGE, REPLACED_TOKENS]);
        totals.losses[1].targets = 100.0;
        let score = |totals: &ObjectiveTotals| totals.scores().get("rtd").cloned().unwrap();
        assert_eq!((score(&totals).precision, score(&totals).recall), (None, None), "nothing was replaced or detected");
        totals.losses[1].detection = DetectionCounts { targets: 8.0, predictions: 4.0, both: 3.0 };
        let sum = ObjectiveTotals::sum_shards(&totals.clone(), &totals.numbers());
        assert_eq!(sum.losses[1].detection, DetectionCounts { targets: 16.0, predictions: 8.0, both: 6.0 });
        assert_eq!((score(&sum).precision, score(&sum).recall), (Some(0.75), Some(0.375)));
    }
}
