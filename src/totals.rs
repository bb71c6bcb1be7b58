//! What a step or an evaluation adds up: losses and right answers, over samples and over ranks.

use lambert_config::objectives::{Asks, Objective, Score, Scores};

use crate::objective;

/// What came of an objective's questions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Cross-entropies, nats.
    pub loss: f64,
    /// Right answers.
    pub correct: f64,
    /// Answers.
    pub answers: f64,
}

impl Sums {
    /// Loss an answer, nats; `None` if nothing was asked.
    pub fn mean_loss(self) -> Option<f64> {
        (self.answers > 0.0).then(|| self.loss / self.answers)
    }

    /// Share of the answers that are right.
    pub fn accuracy(self) -> Option<f64> {
        (self.answers > 0.0).then(|| self.correct / self.answers)
    }
}

/// Sums over the samples of some micro-batches; over all ranks after [`Totals::as_array`] went through an all-reduce.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// In the order of [`objective::ALL`].
    pub objectives: [Sums; objective::ALL.len()],
    /// Digests of the samples as they were fed; exact, because each has 32 bits.
    pub digest: f64,
}

impl Totals {
    /// How many numbers they are.
    pub const LENGTH: usize = 3 * objective::ALL.len() + 1;

    /// The sums as numbers that can be added up over ranks.
    pub fn as_array(self) -> [f64; Self::LENGTH] {
        let mut numbers = [self.digest; Self::LENGTH];
        for (three, Sums { loss, correct, answers }) in numbers.chunks_exact_mut(3).zip(self.objectives) {
            three.copy_from_slice(&[loss, correct, answers]);
        }
        numbers
    }

    /// The sums back from [`Totals::as_array`].
    pub fn from_array(numbers: [f64; Self::LENGTH]) -> Self {
        let three = |place: usize| Sums {
            loss: numbers[3 * place],
            correct: numbers[3 * place + 1],
            answers: numbers[3 * place + 2],
        };
        Self { objectives: std::array::from_fn(three), digest: numbers[Self::LENGTH - 1] }
    }

    /// Totals of some parts of a global batch, from part `first` on, as numbers of which a sum over the ranks makes those of all
    /// `parts`, each in a place of its own.
    pub fn in_places(own: &[Self], first: usize, parts: usize) -> Vec<f64> {
        let mut numbers = vec![0.0; Self::LENGTH * parts];
        for (place, totals) in numbers.chunks_exact_mut(Self::LENGTH).skip(first).zip(own) {
            place.copy_from_slice(&totals.as_array());
        }
        numbers
    }

    /// The sum of the totals in all places, in their order.
    pub fn of_places(numbers: &[f64]) -> Self {
        let (places, _) = numbers.as_chunks::<{ Self::LENGTH }>();
        places.iter().map(|place| Self::from_array(*place)).fold(Self::default(), |sum, totals| sum.and(&totals))
    }

    /// These and those.
    pub fn and(&self, other: &Self) -> Self {
        let mut sums = self.as_array();
        sums.iter_mut().zip(other.as_array()).for_each(|(sum, number)| *sum += number);
        Self::from_array(sums)
    }

    /// Those of one objective.
    pub fn of(&self, objective: Objective) -> Sums {
        let place = objective::ALL.iter().position(|other| other.description() == objective);
        place.map_or_else(Sums::default, |place| self.objectives[place])
    }

    /// Answers about hidden tokens.
    pub fn hidden_tokens(&self) -> u64 {
        let all = objective::ALL.iter().zip(self.objectives);
        let of_tokens = all.filter(|(objective, _)| objective.description().asks == Asks::HiddenTokens);
        of_tokens.map(|(_, sums)| sums.answers as u64).sum()
    }

    /// Mean losses and accuracies of the objectives that were asked.
    pub fn scores(&self) -> Scores {
        let score = |(objective, sums): (&&dyn objective::Objective, Sums)| {
            let objective = objective.description().name.to_owned();
            Some(Score { objective, loss: sums.mean_loss()?, accuracy: sums.accuracy()? })
        };
        objective::ALL.iter().zip(self.objectives).filter_map(score).collect()
    }
}
