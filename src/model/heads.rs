//! The pre-training heads: which piece was masked, and what the second segment is.

use lambert_config::architecture::{Leaf, Part, TensorId};
use lambert_config::run::{self, Activation};
use tch::Tensor;

use super::{LayerNorm, Linear, activate};
use crate::state::Parameters;

/// MLM head (its decoder is the token embedding table, unless it has one of its own) and pair head.
pub struct Heads {
    activation: Activation,
    transform: Linear,
    transform_norm: LayerNorm,
    decoder: Linear,
    /// Added to the logits: minus infinity where a row stands for no piece; \[rows\], `None` if there are none.
    never: Option<Tensor>,
    pooler: Linear,
    pair: Linear,
}

impl Heads {
    pub(super) fn new(parameters: &Parameters, model: &run::Model) -> Self {
        let bias = TensorId::new(Part::PredictionBias, Leaf::Bias);
        let decoder = if model.tied_decoder {
            Linear::of(parameters, TensorId::new(Part::WordEmbeddings, Leaf::Weight), bias)
        } else {
            Linear::new(parameters, Part::Decoder, None)
        };
        let padding = parameters.spec(bias).padding.unwrap_or(0) as i64;
        let never = (padding > 0).then(|| {
            let never = decoder.bias.zeros_like().set_requires_grad(false);
            let _ = never.narrow(0, never.size()[0] - padding, padding).fill_(f64::NEG_INFINITY);
            never
        });
        Self {
            activation: model.activation,
            never,
            transform: Linear::new(parameters, Part::Transform, None),
            transform_norm: LayerNorm::new(parameters, Part::TransformNorm, None, model),
            decoder,
            pooler: Linear::new(parameters, Part::Pooler, None),
            pair: Linear::new(parameters, Part::PairHead, None),
        }
    }

    /// Logits over the vocabulary, \[n, vocabulary\], at `n` chosen positions: `positions` are indices into the rows laid
    /// end to end. `hidden` is \[rows, width, hidden\]. Rows that fill up the vocabulary have minus infinity.
    pub fn masked_language(&self, hidden: &Tensor, positions: &Tensor) -> Tensor {
        let chosen = hidden.flatten(0, 1).index_select(0, positions);
        let transformed = activate(&self.transform.forward(&chosen), self.activation);
        let normalised = self.transform_norm.forward(&transformed);
        let logits = self.decoder.forward(&normalised);
        match &self.never {
            Some(never) => logits + never,
            None => logits,
        }
    }

    /// Logits of the pair label, \[rows, 2\], from the first token's hidden state.
    pub fn pair(&self, hidden: &Tensor) -> Tensor {
        self.pair.forward(&self.pooler.forward(&hidden.select(1, 0)).tanh())
    }
}
