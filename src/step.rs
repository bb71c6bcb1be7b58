//! One micro-batch, and one global batch, through the model.

use lambert_data_prep::random::Key;
use tch::{Kind, Tensor};

use crate::data::{GlobalBatch, MicroBatch};
use crate::model::{Bert, Dropout, Input, Parameters};
use crate::objective::{Scored, masked_language, pair};
use crate::torch::{self, TorchError};

/// Sums over the samples of some micro-batches; over all ranks after [`Totals::as_array`] went through an all-reduce.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Cross-entropies at the hidden tokens, nats.
    pub mlm_loss: f64,
    /// Hidden tokens that were guessed right.
    pub mlm_correct: f64,
    /// Hidden tokens.
    pub masked_tokens: f64,
    /// Cross-entropies of the pair objective, nats.
    pub pair_loss: f64,
    /// Pair labels that were guessed right.
    pub pair_correct: f64,
    /// Pair labels.
    pub pairs: f64,
    /// Digests of the samples as they were fed; exact, because each has 32 bits.
    pub digest: f64,
}

impl Totals {
    /// The sums as numbers that can be added up over ranks.
    pub fn as_array(self) -> [f64; 7] {
        let Self { mlm_loss, mlm_correct, masked_tokens, pair_loss, pair_correct, pairs, digest } = self;
        [mlm_loss, mlm_correct, masked_tokens, pair_loss, pair_correct, pairs, digest]
    }

    /// The sums back from [`Totals::as_array`].
    pub fn from_array(sums: [f64; 7]) -> Self {
        let [mlm_loss, mlm_correct, masked_tokens, pair_loss, pair_correct, pairs, digest] = sums;
        Self { mlm_loss, mlm_correct, masked_tokens, pair_loss, pair_correct, pairs, digest }
    }

    fn add(&mut self, other: Self) {
        let (mut sums, other) = (self.as_array(), other.as_array());
        sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
        *self = Self::from_array(sums);
    }
}

/// What a micro-batch's losses are divided by: the counts of the whole global batch.
#[derive(Debug, Clone, Copy)]
struct Divisors {
    masked_tokens: f64,
    samples: f64,
}

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
    let divisors = Divisors { masked_tokens: batch.masked_tokens.max(1) as f64, samples: batch.lengths.len() as f64 };
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

/// The objectives' scores of one micro-batch.
struct Scores {
    mlm: Scored,
    pair: Option<Scored>,
}

impl Scores {
    fn new(bert: &Bert, batch: &MicroBatch, hidden: &Tensor) -> Self {
        let (positions, labels) = (Tensor::from_slice(&batch.positions), Tensor::from_slice(&batch.labels));
        let rows = (!batch.factors.is_empty()).then(|| Tensor::from_slice(&batch.factors));
        let row_of = || positions.divide_scalar_mode(batch.width as i64, "floor");
        let tokens = rows.as_ref().map(|rows| rows.index_select(0, &row_of()));
        let mlm = masked_language::score(&bert.heads, hidden, &positions, &labels, tokens.as_ref());
        let pair = (!batch.pair_labels.is_empty())
            .then(|| pair::score(&bert.heads, hidden, &Tensor::from_slice(&batch.pair_labels), rows.as_ref()));
        Self { mlm, pair }
    }

    /// This micro-batch's share of the global batch's loss, a scalar.
    fn loss(&self, divisors: Divisors) -> Tensor {
        let mlm = &self.mlm.loss / divisors.masked_tokens;
        match &self.pair {
            Some(pair) => mlm + &pair.loss / divisors.samples,
            None => mlm,
        }
    }
}

fn forward(bert: &Bert, batch: &MicroBatch, dropout: Dropout<'_>, backward: Option<Divisors>) -> Totals {
    let input = input(batch);
    let score = |hidden: &Tensor| Scores::new(bert, batch, hidden);
    let Scores { mlm, pair } = match backward {
        Some(divisors) => bert.backward(&input, dropout, |hidden| {
            let scores = score(hidden);
            (scores.loss(divisors), scores)
        }),
        None => score(&bert.forward(&input, dropout)),
    };
    let number = |tensor: &Tensor| tensor.to_kind(Kind::Double).double_value(&[]);
    Totals {
        mlm_loss: number(&mlm.loss),
        mlm_correct: number(&mlm.correct),
        masked_tokens: batch.labels.len() as f64,
        pair_loss: pair.as_ref().map_or(0.0, |pair| number(&pair.loss)),
        pair_correct: pair.as_ref().map_or(0.0, |pair| number(&pair.correct)),
        pairs: batch.pair_labels.len() as f64,
        digest: batch.digest as f64,
    }
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
