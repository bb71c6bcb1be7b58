//! One micro-batch, and one global batch, through the model.

use lambert_data_prep::random::Key;
use tch::{Kind, Tensor};

use crate::data::{GlobalBatch, MicroBatch};
use crate::model::{Bert, Dropout, Input, Parameters};
use crate::objective::{self, Scored};
use crate::torch::{self, TorchError};

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

    fn add(&mut self, other: Self) {
        let (mut sums, other) = (self.as_array(), other.as_array());
        sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
        *self = Self::from_array(sums);
    }

    /// Those of masked language modelling.
    pub fn mlm(&self) -> Sums {
        self.objectives[objective::MASKED_LANGUAGE]
    }

    /// Those of the pair objective.
    pub fn pair(&self) -> Sums {
        self.objectives[objective::PAIR]
    }
}

/// What each objective's losses of a micro-batch are divided by: its answers over the whole global batch.
type Divisors = [f64; objective::ALL.len()];

/// Forward and backward passes over this rank's part of a global batch. The gradients of
/// `sum(MLM losses) / masked tokens + sum(pair losses) / samples` (counts of the whole global batch) are in
/// `parameters.gradients` afterwards, and nothing else.
///
/// `dropout` is a key made of the seed and the step.
pub fn forward_backward(
    bert: &Bert,
    parameters: &mut Parameters,
    batch: &GlobalBatch,
    dropout: Key,
) -> Result<Totals, TorchError> {
    let divisors = objective::ALL.map(|objective| objective.answers_of_all(batch).max(1) as f64);
    torch::guard(|| {
        let _ = parameters.gradients.zero_();
        let mut totals = Totals::default();
        for micro_batch in &batch.micro_batches {
            let dropout = bert.dropout(dropout, &micro_batch.samples);
            totals.add(forward(bert, micro_batch, dropout, Some(divisors)));
        }
        totals
    })
}

/// Forward passes without dropout over some micro-batches.
pub fn evaluate(bert: &Bert, micro_batches: &[MicroBatch]) -> Result<Totals, TorchError> {
    torch::guard(|| {
        tch::no_grad(|| {
            let mut totals = Totals::default();
            for micro_batch in micro_batches {
                totals.add(forward(bert, micro_batch, Dropout::Off, None));
            }
            totals
        })
    })
}

/// Scores of one micro-batch, of each objective that it has questions of.
type Scores = [Option<Scored>; objective::ALL.len()];

fn score(bert: &Bert, batch: &MicroBatch, hidden: &Tensor) -> Scores {
    let factors = (!batch.factors.is_empty()).then(|| Tensor::from_slice(&batch.factors));
    objective::ALL.map(|objective| {
        (objective.answers(batch) > 0).then(|| objective.score(&bert.heads, hidden, batch, factors.as_ref()))
    })
}

/// This micro-batch's share of the global batch's loss, a scalar.
fn loss(scores: &Scores, divisors: Divisors) -> Tensor {
    let shares = scores.iter().zip(divisors).filter_map(|(scored, divisor)| Some(&scored.as_ref()?.loss / divisor));
    // The first by itself, so that a sum of one has no other rounding.
    shares.reduce(|sum, share| sum + share).unwrap_or_else(|| Tensor::from(0.0_f32).set_requires_grad(true))
}

fn forward(bert: &Bert, batch: &MicroBatch, dropout: Dropout<'_>, backward: Option<Divisors>) -> Totals {
    let input = input(batch);
    let scores = match backward {
        Some(divisors) => bert.backward(&input, dropout, |hidden| {
            let scores = score(bert, batch, hidden);
            (loss(&scores, divisors), scores)
        }),
        None => score(bert, batch, &bert.forward(&input, dropout)),
    };
    let mut totals = Totals { digest: batch.digest as f64, ..Totals::default() };
    let number = |tensor: &Tensor| tensor.to_kind(Kind::Double).double_value(&[]);
    for ((sums, scored), objective) in totals.objectives.iter_mut().zip(&scores).zip(objective::ALL) {
        if let Some(Scored { loss, correct }) = scored {
            *sums = Sums { loss: number(loss), correct: number(correct), answers: objective.answers(batch) as f64 };
        }
    }
    totals
}

/// The tensors that a forward pass reads.
pub fn input(batch: &MicroBatch) -> Input {
    let shape = [batch.rows as i64, batch.width as i64];
    let attendable = batch.is_padded().then(|| {
        let row = |length: &usize| (0..batch.width).map(|position| position < *length).collect::<Vec<bool>>();
        let all: Vec<bool> = batch.lengths.iter().flat_map(row).collect();
        Tensor::from_slice(&all).view([shape[0], 1, 1, shape[1]])
    });
    Input {
        ids: Tensor::from_slice(&batch.ids).view(shape),
        segments: Tensor::from_slice(&batch.segments).view(shape),
        attendable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::MaskedSample;
    use crate::masking::Hidden;
    use crate::model::parameters;
    use lambert_config::run::{Model, Norm};

    fn sample(length: u32) -> MaskedSample {
        let hidden = Hidden { position: 1, label: length };
        let ids = (0..length).map(|place| (place * 7 + length) % 50).collect();
        MaskedSample { ids, segment_b_start: 3, pair_label: Some(1), hidden: vec![hidden], factor: 1.0 }
    }

    /// Five samples of 5 to 13 tokens, in the given micro-batches.
    fn batch(cuts: &[&[usize]]) -> GlobalBatch {
        let length = |number: usize| 5 + 2 * number;
        let micro = |cut: &&[usize]| {
            let samples: Vec<_> = cut.iter().map(|number| sample(length(*number) as u32)).collect();
            MicroBatch::new(cut, cut.iter().map(|number| length(*number)).max().unwrap(), 0, &samples)
        };
        let lengths = (0..5).map(|number| length(number) as u16).collect();
        GlobalBatch {
            epoch: 0,
            drawn: 0..5,
            lengths,
            padding: 0,
            masked_tokens: 5,
            micro_batches: cuts.iter().map(micro).collect(),
        }
    }

    fn gradients(cuts: &[&[usize]], step: u64, norm: Norm, recompute: bool) -> Vec<f32> {
        let shape = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let model = Model { dropout: 0.3, norm, ..shape };
        let mut parameters = Parameters::initialize(parameters::specs(&model, 2, 50), 1, 0.2);
        let mut bert = Bert::new(&parameters, &model, 2);
        bert.recompute = recompute;
        forward_backward(&bert, &mut parameters, &batch(cuts), Key::new(step)).unwrap();
        torch::floats(&parameters.gradients).to_vec()
    }

    /// |a - b| / |a|.
    fn distance(a: &[f32], b: &[f32]) -> f64 {
        let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
    }

    const WHOLE: &[&[usize]] = &[&[4, 3, 2, 1, 0]];

    #[test]
    fn gradients_with_dropout_do_not_depend_on_the_micro_batches() {
        let whole = gradients(WHOLE, 1, Norm::Post, false);
        let cut = gradients(&[&[3, 0], &[1], &[4, 2]], 1, Norm::Post, false);
        assert!(distance(&whole, &cut) < 1e-5, "{}", distance(&whole, &cut));
        let next = gradients(WHOLE, 2, Norm::Post, false);
        assert!(distance(&whole, &next) > 0.1, "another step, the same dropout");
    }

    #[test]
    fn activations_computed_again_give_the_same_gradients() {
        for norm in [Norm::Post, Norm::Pre] {
            let (kept, again) = (gradients(WHOLE, 1, norm, false), gradients(WHOLE, 1, norm, true));
            assert!(distance(&kept, &again) < 1e-6, "{norm:?}: {}", distance(&kept, &again));
        }
    }
}
