//! Transformer encoder layer. Self-attention and the feed-forward network each have a residual connection, with post-norm
//! or pre-norm.

use lambert_config::run::Norm;
use lambert_plan::architecture::ModuleKind;
use tch::Tensor;

use super::attention::{AttentionInput, SelfAttention};
use super::block::SegmentBlock;
use super::feed_forward::FeedForward;
use super::{Dropout, NetworkWeights, Normalization};
use crate::model::input::Input;

/// Encoder layer.
pub struct Layer {
    norm: Norm,
    attention: SelfAttention,
    /// Normalization of the attention. The first layer of a pre-norm network may have none.
    attention_norm: Option<Normalization>,
    feed_forward: FeedForward,
    output_norm: Normalization,
}

impl Layer {
    /// Creates the layer application with index `application`, which uses the parameters of layer `layer`. A network can
    /// apply one layer several times.
    pub fn new(weights: NetworkWeights<'_>, layer: usize, application: usize) -> Self {
        let norm = |part| Normalization::new(weights, part, Some(layer));
        let part = ModuleKind::AttentionNorm;
        Self {
            norm: weights.norm_placement(),
            attention: SelfAttention::new(weights, layer, application),
            attention_norm: weights.layer_has(layer, part).then(|| norm(part)),
            feed_forward: FeedForward::new(weights, layer, application),
            output_norm: norm(ModuleKind::OutputNorm),
        }
    }

    /// Maps hidden states \[batch, sequence, hidden\] to hidden states of the same shape. `inputs` are the hidden states, then
    /// in DeBERTa the table of relative positions, then in its decoder the queries.
    fn apply(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Tensor {
        let (hidden, relative, queries) = (inputs[0], inputs.get(1).copied(), inputs.get(2).copied());
        let attention = |x: &Tensor, residual: &Tensor| {
            self.attention.forward(AttentionInput { hidden: x, queries, relative, residual }, input, dropout)
        };
        let attention_norm = |x: &Tensor| match &self.attention_norm {
            Some(norm) => norm.forward(x),
            None => x.shallow_clone(),
        };
        match self.norm {
            Norm::Post => {
                let hidden = attention_norm(&attention(hidden, queries.unwrap_or(hidden)));
                self.output_norm.forward(&self.feed_forward.forward(&hidden, &hidden, dropout))
            }
            Norm::Pre => {
                let hidden = attention(&attention_norm(hidden), hidden);
                self.feed_forward.forward(&self.output_norm.forward(&hidden), &hidden, dropout)
            }
        }
    }
}

impl SegmentBlock for Layer {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        vec![self.apply(inputs, input, dropout)]
    }
}
