//! One encoder layer: self-attention and feed-forward, each added to its input. Normalised is the sum, or what goes in.

use lambert_config::run::{self, Activation, Norm};
use tch::Tensor;

use super::{Dropout, LayerNorm, Linear, Parameters, activate};

pub struct Layer {
    heads: i64,
    norm: Norm,
    activation: Activation,
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    pub fn new(parameters: &Parameters, model: &run::Model, index: usize) -> Self {
        let name = |part: &str| format!("bert.encoder.layer.{index}.{part}");
        let linear = |part: &str| Linear::new(parameters, &name(part));
        let norm = |[post, pre]: [&str; 2]| {
            let part = if model.norm == Norm::Post { post } else { pre };
            LayerNorm::new(parameters, &name(part), model)
        };
        Self {
            heads: model.heads as i64,
            norm: model.norm,
            activation: model.activation,
            query: linear("attention.self.query"),
            key: linear("attention.self.key"),
            value: linear("attention.self.value"),
            attention_output: linear("attention.output.dense"),
            attention_norm: norm(["attention.output.LayerNorm", "attention.ln"]),
            intermediate: linear("intermediate.dense"),
            output: linear("output.dense"),
            output_norm: norm(["output.LayerNorm", "ln"]),
        }
    }

    /// \[rows, width, hidden\] to the same.
    pub fn forward(&self, hidden: &Tensor, attendable: Option<&Tensor>, dropout: Dropout) -> Tensor {
        let attention = |x: &Tensor| dropout.apply(self.attention_output.forward(&self.attend(x, attendable, dropout)));
        let feed_forward = |x: &Tensor| {
            let inner = activate(&self.intermediate.forward(x), self.activation);
            dropout.apply(self.output.forward(&inner))
        };
        match self.norm {
            Norm::Post => {
                let hidden = self.attention_norm.forward(&(attention(hidden) + hidden));
                self.output_norm.forward(&(feed_forward(&hidden) + hidden))
            }
            Norm::Pre => {
                let hidden = attention(&self.attention_norm.forward(hidden)) + hidden;
                feed_forward(&self.output_norm.forward(&hidden)) + hidden
            }
        }
    }

    fn attend(&self, hidden: &Tensor, attendable: Option<&Tensor>, dropout: Dropout) -> Tensor {
        let size = hidden.size();
        let (rows, width) = (size[0], size[1]);
        // [rows, heads, width, hidden / heads]
        let split = |linear: &Linear| linear.forward(hidden).view([rows, width, self.heads, -1]).transpose(1, 2);
        let mixed = Tensor::scaled_dot_product_attention(
            &split(&self.query),
            &split(&self.key),
            &split(&self.value),
            attendable,
            dropout.attention_probability(),
            false,
            None,
            false,
        );
        mixed.transpose(1, 2).reshape([rows, width, -1])
    }
}
