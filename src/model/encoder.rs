//! One post-layer-norm encoder layer: self-attention and feed-forward, each added to its input and then normalised.

use lambert_config::run;
use tch::Tensor;

use super::{Dropout, LayerNorm, Linear, Parameters};

pub struct Layer {
    heads: i64,
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
        Self {
            heads: model.heads as i64,
            query: linear("attention.self.query"),
            key: linear("attention.self.key"),
            value: linear("attention.self.value"),
            attention_output: linear("attention.output.dense"),
            attention_norm: LayerNorm::new(parameters, &name("attention.output.LayerNorm"), model),
            intermediate: linear("intermediate.dense"),
            output: linear("output.dense"),
            output_norm: LayerNorm::new(parameters, &name("output.LayerNorm"), model),
        }
    }

    /// \[rows, width, hidden\] to the same.
    pub fn forward(&self, hidden: &Tensor, attendable: Option<&Tensor>, dropout: Dropout) -> Tensor {
        let attended = dropout.apply(self.attention_output.forward(&self.attend(hidden, attendable, dropout)));
        let hidden = self.attention_norm.forward(&(attended + hidden));
        let transformed = self.output.forward(&self.intermediate.forward(&hidden).gelu("none"));
        self.output_norm.forward(&(dropout.apply(transformed) + hidden))
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
            dropout.probability(),
            false,
            None,
            false,
        );
        mixed.transpose(1, 2).reshape([rows, width, -1])
    }
}
