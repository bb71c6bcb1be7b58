//! One encoder layer: self-attention and feed-forward, each added to its input. Normalised is the sum, or what goes in.

use lambert_config::run::{Activation, Norm};
use lambert_plan::architecture::Part;
use tch::Tensor;

use super::block::Block;
use super::dropout::{Place, Site};
use super::{Dropout, LayerNorm, Linear, NetworkWeights, activate};
use crate::model::input::Input;

/// See the module.
pub struct Layer {
    /// Its number among all applications of layers.
    application: usize,
    heads: i64,
    norm: Norm,
    activation: Activation,
    /// Query, key and value, one below the other.
    query_key_value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    /// An application of layer `layer`, by the parameters of that.
    pub fn new(weights: NetworkWeights<'_>, layer: usize, application: usize) -> Self {
        let model = weights.model;
        let linear = |part| Linear::new(weights, part, Some(layer));
        let norm = |part| LayerNorm::new(weights, part, Some(layer));
        Self {
            application,
            heads: model.heads as i64,
            norm: weights.norm(),
            activation: model.activation,
            query_key_value: Linear::joined(weights, Part::Query, layer),
            attention_output: linear(Part::AttentionOutput),
            attention_norm: norm(Part::AttentionNorm),
            intermediate: linear(Part::Intermediate),
            output: linear(Part::Output),
            output_norm: norm(Part::OutputNorm),
        }
    }

    /// \[rows, width, hidden\] to the same. `attendable` is \[rows, 1, 1, width\], `true` where a token is no padding.
    fn apply(&self, hidden: &Tensor, attendable: Option<&Tensor>, dropout: Dropout<'_>) -> Tensor {
        // Each of `x`, added to `hidden`.
        let attention = |x: &Tensor, hidden: &Tensor| {
            let mixed = self.attend(x, attendable, dropout);
            dropout.hidden(self.attention_output.forward(&mixed), Some(hidden), self.site(Place::AttentionOutput))
        };
        let feed_forward = |x: &Tensor, hidden: &Tensor| {
            let inner = activate(&self.intermediate.forward(x), self.activation);
            dropout.hidden(self.output.forward(&inner), Some(hidden), self.site(Place::FeedForward))
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

    fn site(&self, place: Place) -> Site {
        Site::Layer { application: self.application, place }
    }

    /// softmax(Q K^T / sqrt(hidden / heads)) V.
    fn attend(&self, hidden: &Tensor, attendable: Option<&Tensor>, dropout: Dropout<'_>) -> Tensor {
        let size = hidden.size();
        let (rows, width) = (size[0], size[1]);
        // Three of [rows, width, heads, hidden / heads]. Their gradients are stacked by one copy, as the product wants them.
        let all = self.query_key_value.forward(hidden).view([rows, width, 3, self.heads, -1]).unbind(2);
        let heads = |index: usize| all[index].transpose(1, 2);
        let (query, key, value) = (heads(0), heads(1), heads(2));
        let mixed = if dropout.needs_weights() {
            let scale = 1.0 / (query.size()[3] as f64).sqrt();
            let mut scores = (query * scale).matmul(&key.transpose(2, 3));
            if let Some(attendable) = attendable {
                scores = scores.masked_fill(&attendable.logical_not(), f64::NEG_INFINITY);
            }
            dropout.attention(scores.softmax(-1, None), self.site(Place::AttentionWeights)).matmul(&value)
        } else {
            // libtorch's fused kernels, which keep no weights.
            let dropped = dropout.of_fused_attention(self.site(Place::AttentionWeights));
            Tensor::scaled_dot_product_attention(&query, &key, &value, attendable, dropped, false, None, false)
        };
        mixed.transpose(1, 2).reshape([rows, width, -1])
    }
}

impl Block for Layer {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        vec![self.apply(inputs[0], input.attendable.as_ref(), dropout)]
    }
}
