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
        let attention = |x: &Tensor, residual: &Tensor, norm: Option<&Normalization>| {
            self.attention.forward(AttentionInput { hidden: x, queries, relative, residual }, norm, input, dropout)
        };
        let attention_norm = self.attention_norm.as_ref();
        match self.norm {
            Norm::Post => {
                let hidden = attention(hidden, queries.unwrap_or(hidden), attention_norm);
                self.feed_forward.forward(&hidden, &hidden, Some(&self.output_norm), dropout)
            }
            Norm::Pre => {
                let normed = attention_norm.map(|norm| norm.forward(hidden));
                let hidden = attention(normed.as_ref().unwrap_or(hidden), hidden, None);
                self.feed_forward.forward(&self.output_norm.forward(&hidden), &hidden, None, dropout)
            }
        }
    }
}

impl SegmentBlock for Layer {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        vec![self.apply(inputs, input, dropout)]
    }
}
