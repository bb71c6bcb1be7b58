//! Multi-head self-attention, global or local, with or without rotary positions.

use lambert_plan::architecture::ModuleKind;
use tch::{Kind, Tensor};

use super::dropout::{DropoutSite, LayerDropout};
use super::{Dropout, Linear, NetworkWeights};
use crate::model::input::Input;

/// Multi-head self-attention with its output projection.
pub struct SelfAttention {
    /// Index of the layer application, which is part of the dropout key.
    application: usize,
    heads: i64,
    /// Distance, in tokens, at which a token still attends to others. `None`: any distance.
    reach: Option<usize>,
    /// Base of the rotary positions, if the network has them.
    rotary_base: Option<f64>,
    /// True if the output has dropout.
    drops_output: bool,
    /// Query, key and value projections, stacked in this order into one linear layer.
    query_key_value: Linear,
    output: Linear,
}

impl SelfAttention {
    /// Creates the attention of layer application `application`, which uses the parameters of layer `layer`.
    pub fn new(weights: NetworkWeights<'_>, layer: usize, application: usize) -> Self {
        let model = weights.model;
        let has = |part| weights.network.module(part).is_some();
        let reach = weights.attention_reach(layer);
        let local_base = reach.and(model.local_rotary_base).or(model.rotary_base);
        Self {
            application,
            heads: model.heads as i64,
            reach,
            rotary_base: local_base.filter(|_| has(ModuleKind::Rotary)),
            drops_output: weights.drops(ModuleKind::AttentionOutput),
            query_key_value: match has(ModuleKind::QueryKeyValue) {
                true => Linear::new(weights, ModuleKind::QueryKeyValue, Some(layer)),
                false => Linear::fused(weights, ModuleKind::Query, layer),
            },
            output: Linear::new(weights, ModuleKind::AttentionOutput, Some(layer)),
        }
    }

    /// Returns the attention over `x` plus `residual`. All are \[batch, sequence, hidden\].
    pub fn forward(&self, x: &Tensor, residual: &Tensor, input: &Input, dropout: Dropout<'_>) -> Tensor {
        let output = self.output.forward(&self.attend(x, input, dropout));
        let of_output = if self.drops_output { dropout } else { Dropout::Off };
        of_output.hidden(output, Some(residual), self.site(LayerDropout::AttentionOutput))
    }

    fn site(&self, position: LayerDropout) -> DropoutSite {
        DropoutSite::Layer { application: self.application, position }
    }

    /// softmax(Q K^T / sqrt(head_size)) V, without the output projection.
    fn attend(&self, hidden: &Tensor, input: &Input, dropout: Dropout<'_>) -> Tensor {
        let size = hidden.size();
        let (rows, seq_len) = (size[0], size[1]);
        // `unbind` returns three tensors [batch, sequence, heads, head_size]. In its backward pass, one copy stacks
        // their gradients in the layout of the fused projection.
        let all = self.query_key_value.forward(hidden).view([rows, seq_len, 3, self.heads, -1]).unbind(2);
        let rotation = self.rotary_base.map(|base| input.rotation(base, all[0].size()[3]));
        let rotated = |index: usize| match &rotation {
            Some(rotation) => rotation.apply(&all[index]).transpose(1, 2),
            None => all[index].transpose(1, 2),
        };
        let (query, key, value) = (rotated(0), rotated(1), all[2].transpose(1, 2));
        let attention_mask = match self.reach {
            Some(reach) => input.local_attention_mask(reach, query.kind()),
            None => input.attention_mask.as_ref().map(Tensor::shallow_clone),
        };
        let mixed = if dropout.needs_attention_weights() {
            let scale = 1.0 / (query.size()[3] as f64).sqrt();
            let mut scores = (query * scale).matmul(&key.transpose(2, 3));
            scores = match attention_mask {
                Some(mask) if mask.kind() == Kind::Bool => scores.masked_fill(&mask.logical_not(), f64::NEG_INFINITY),
                Some(mask) => scores + mask,
                None => scores,
            };
            dropout.attention(scores.softmax(-1, None), self.site(LayerDropout::AttentionWeights)).matmul(&value)
        } else {
            // The fused kernels of libtorch do not store the attention weights.
            let dropped = dropout.seed_fused_attention(self.site(LayerDropout::AttentionWeights));
            Tensor::scaled_dot_product_attention(&query, &key, &value, attention_mask, dropped, false, None, false)
        };
        mixed.transpose(1, 2).reshape([rows, seq_len, -1])
    }
}
