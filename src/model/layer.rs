//! Transformer encoder layer. Self-attention and the feed-forward network each have a
//! residual connection, with post-norm or pre-norm.

use lambert_config::run::{Activation, Norm};
use lambert_plan::architecture::ModuleKind;
use tch::Tensor;

use super::block::SegmentBlock;
use super::dropout::{DropoutSite, LayerDropout};
use super::{Dropout, LayerNorm, Linear, NetworkWeights, activate};
use crate::model::input::Input;

/// Encoder layer.
pub struct Layer {
    /// Index of this application among all layer applications of the network. A network
    /// can apply one layer several times.
    application: usize,
    heads: i64,
    norm: Norm,
    /// True if the output of the attention has dropout.
    drops_attention_output: bool,
    activation: Activation,
    /// Query, key and value projections, stacked in this order into one linear layer.
    query_key_value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    /// Creates the layer application with index `application`, which uses the parameters of layer `layer`.
    pub fn new(weights: NetworkWeights<'_>, layer: usize, application: usize) -> Self {
        let model = weights.model;
        let linear = |part| Linear::new(weights, part, Some(layer));
        let norm = |part| LayerNorm::new(weights, part, Some(layer));
        Self {
            application,
            heads: model.heads as i64,
            norm: weights.norm_placement(),
            drops_attention_output: weights.drops(ModuleKind::AttentionOutput),
            activation: model.activation,
            query_key_value: Linear::fused(weights, ModuleKind::Query, layer),
            attention_output: linear(ModuleKind::AttentionOutput),
            attention_norm: norm(ModuleKind::AttentionNorm),
            intermediate: linear(ModuleKind::Intermediate),
            output: linear(ModuleKind::Output),
            output_norm: norm(ModuleKind::OutputNorm),
        }
    }

    /// Maps hidden states \[batch, sequence, hidden\] to hidden states of the same shape. `attention_mask` is
    /// \[batch, 1, 1, sequence\], `true` at tokens.
    fn apply(&self, hidden: &Tensor, attention_mask: Option<&Tensor>, dropout: Dropout<'_>) -> Tensor {
        // `attention` and `feed_forward` transform `x`, and add `hidden` as the residual.
        let attention = |x: &Tensor, hidden: &Tensor| {
            let output = self.attention_output.forward(&self.attend(x, attention_mask, dropout));
            let of_output = if self.drops_attention_output { dropout } else { Dropout::Off };
            of_output.hidden(output, Some(hidden), self.site(LayerDropout::AttentionOutput))
        };
        let feed_forward = |x: &Tensor, hidden: &Tensor| {
            let inner = activate(&self.intermediate.forward(x), self.activation);
            dropout.hidden(self.output.forward(&inner), Some(hidden), self.site(LayerDropout::FeedForward))
        };
        match self.norm {
            Norm::Post => {
                let hidden = self.attention_norm.forward(&attention(hidden, hidden));
                self.output_norm.forward(&feed_forward(&hidden, &hidden))
            }
            Norm::Pre => {
                let hidden = attention(&self.attention_norm.forward(hidden), hidden);
                feed_forward(&self.output_norm.forward(&hidden), &hidden)
            }
        }
    }

    fn site(&self, position: LayerDropout) -> DropoutSite {
        DropoutSite::Layer { application: self.application, position }
    }

    /// Multi-head self-attention, softmax(Q K^T / sqrt(head_size)) V, without the output projection.
    fn attend(&self, hidden: &Tensor, attention_mask: Option<&Tensor>, dropout: Dropout<'_>) -> Tensor {
        let size = hidden.size();
        let (rows, seq_len) = (size[0], size[1]);
        // `unbind` returns three tensors [batch, sequence, heads, head_size]. In its backward pass, one copy stacks
        // their gradients in the layout of the fused projection.
        let all = self.query_key_value.forward(hidden).view([rows, seq_len, 3, self.heads, -1]).unbind(2);
        let heads = |index: usize| all[index].transpose(1, 2);
        let (query, key, value) = (heads(0), heads(1), heads(2));
        let mixed = if dropout.needs_attention_weights() {
            let scale = 1.0 / (query.size()[3] as f64).sqrt();
            let mut scores = (query * scale).matmul(&key.transpose(2, 3));
            if let Some(attention_mask) = attention_mask {
                scores = scores.masked_fill(&attention_mask.logical_not(), f64::NEG_INFINITY);
            }
            dropout.attention(scores.softmax(-1, None), self.site(LayerDropout::AttentionWeights)).matmul(&value)
        } else {
            // The fused kernels of libtorch do not store the attention weights.
            let dropped = dropout.seed_fused_attention(self.site(LayerDropout::AttentionWeights));
            Tensor::scaled_dot_product_attention(&query, &key, &value, attention_mask, dropped, false, None, false)
        };
        mixed.transpose(1, 2).reshape([rows, seq_len, -1])
    }
}

impl SegmentBlock for Layer {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        vec![self.apply(inputs[0], input.attention_mask.as_ref(), dropout)]
    }
}
