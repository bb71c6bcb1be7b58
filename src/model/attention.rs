//! Multi-head self-attention, global or local, with or without rotary positions.

use lambert_plan::architecture::ModuleKind;
use tch::{Kind, Tensor};

use super::dropout::{DropoutSite, LayerDropout};
use super::relative;
use super::relative_range::RelativeRange;
use super::residual;
use super::{Dropout, Linear, NetworkWeights, Normalization};
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
    /// Relative positions, if the network has them.
    relative: Option<RelativeRange>,
    /// True if the output has dropout.
    drops_output: bool,
    /// Query, key and value projections, stacked in this order into one linear layer.
    query_key_value: Linear,
    /// Query projection alone, unless queries, keys and values have one tensor.
    query: Option<Linear>,
    output: Linear,
}

/// Inputs of an attention, each \[batch, sequence, hidden\] except the table.
#[derive(Clone, Copy)]
pub struct AttentionInput<'a> {
    /// Keys and values, and queries if there are no others.
    pub hidden: &'a Tensor,
    /// Queries of a decoder.
    pub queries: Option<&'a Tensor>,
    /// Table of relative positions, \[2 x buckets, hidden\].
    pub relative: Option<&'a Tensor>,
    /// Added to the output.
    pub residual: &'a Tensor,
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
            relative: RelativeRange::of_model(model).filter(|_| has(ModuleKind::RelativeEmbeddings)),
            drops_output: weights.drops(ModuleKind::AttentionOutput),
            query_key_value: match has(ModuleKind::QueryKeyValue) {
                true => Linear::new(weights, ModuleKind::QueryKeyValue, Some(layer)),
                false => Linear::fused(weights, ModuleKind::Query, layer),
            },
            query: has(ModuleKind::Query).then(|| Linear::new(weights, ModuleKind::Query, Some(layer))),
            output: Linear::new(weights, ModuleKind::AttentionOutput, Some(layer)),
        }
    }

    /// Returns the attention plus the residual, \[batch, sequence, hidden\], normalized by `norm` if given.
    pub fn forward(
        &self,
        x: AttentionInput<'_>,
        norm: Option<&Normalization>,
        input: &Input,
        dropout: Dropout<'_>,
    ) -> Tensor {
        let mixed = self.attend(x, input, dropout);
        let of_output = if self.drops_output { dropout } else { Dropout::Off };
        residual::add(&self.output, &mixed, x.residual, norm, of_output, self.site(LayerDropout::AttentionOutput))
    }

    fn site(&self, position: LayerDropout) -> DropoutSite {
        DropoutSite::Layer { application: self.application, position }
    }

    /// Returns queries, keys and values, each \[batch, sequence, heads, head size\]. Queries and keys are rotated by their
    /// positions, if the network has rotary positions.
    fn project(&self, x: AttentionInput<'_>, input: &Input, dropout: Dropout<'_>) -> [Tensor; 3] {
        let size = x.hidden.size();
        let by_head = |projected: Tensor| projected.view([size[0], size[1], self.heads, -1]);
        let mut fused = self.query_key_value.forward(x.hidden).view([size[0], size[1], 3, self.heads, -1]);
        let head_size = fused.size()[4];
        let mut rotation = self.rotary_base.map(|base| input.rotation(base, head_size));
        if let (Some(kernels), Some(angles)) = (dropout.kernels(), &rotation)
            && kernels.has_rotation(head_size)
        {
            fused = kernels.rotate(&fused, angles.angles());
            rotation = None;
        }
        // In the backward pass of `unbind`, one copy stacks the gradients in the layout of the fused projection.
        let mut all = fused.unbind(2);
        if let (Some(queries), Some(query)) = (x.queries, &self.query) {
            all[0] = by_head(query.forward(queries));
        }
        let [query, key, value] = [0, 1, 2].map(|index: usize| all[index].shallow_clone());
        match rotation {
            Some(rotation) => [rotation.apply(&query), rotation.apply(&key), value],
            None => [query, key, value],
        }
    }

    /// softmax(Q K^T / sqrt(head_size)) V, without the output projection. Relative positions add further scores.
    fn attend(&self, x: AttentionInput<'_>, input: &Input, dropout: Dropout<'_>) -> Tensor {
        let [query, key, value] = self.project(x, input, dropout);
        let (size, head_size) = (x.hidden.size(), query.size()[3]);
        if let Some(sequences) = &input.sequences {
            let dropped = dropout.seed_fused_attention(self.site(LayerDropout::AttentionWeights));
            let mixed = sequences.attention([&query, &key, &value], self.reach, dropped);
            return mixed.reshape([size[0], size[1], -1]);
        }
        let mask = match self.reach {
            Some(reach) => input.local_attention_mask(reach, query.kind()),
            None => input.attention_mask.as_ref().map(Tensor::shallow_clone),
        };
        let relative = self.relative.zip(x.relative);
        let heads = |tensor: &Tensor| tensor.transpose(1, 2);
        let mixed = if relative.is_some() || dropout.needs_attention_weights() {
            let products = if relative.is_some() { 3 * head_size } else { head_size };
            let query = query * (1.0 / (products as f64).sqrt());
            let mut scores = heads(&query).matmul(&heads(&key).transpose(2, 3));
            if let Some((range, table)) = relative {
                let key = key * (1.0 / (products as f64).sqrt());
                let relative = self.relative_scores([&query, &key], (range, table), input, dropout);
                scores = relative + &scores;
            }
            scores = match mask {
                Some(mask) if mask.kind() == Kind::Bool => scores.masked_fill(&mask.logical_not(), f64::NEG_INFINITY),
                Some(mask) => scores + mask,
                None => scores,
            };
            dropout
                .attention(scores.softmax(-1, None), self.site(LayerDropout::AttentionWeights))
                .matmul(&heads(&value))
        } else {
            // The fused kernels of libtorch do not store the attention weights.
            let dropped = dropout.seed_fused_attention(self.site(LayerDropout::AttentionWeights));
            let [query, key, value] = [&query, &key, &value].map(heads);
            Tensor::scaled_dot_product_attention(&query, &key, &value, mask, dropped, false, None, false)
        };
        mixed.transpose(1, 2).reshape([size[0], size[1], -1])
    }

    /// Returns the scores of contents with relative positions, in both directions, \[batch, heads, sequence, sequence\].
    /// `contents` are scaled queries and keys. The positions have the same projections as the contents.
    fn relative_scores(
        &self,
        contents: [&Tensor; 2],
        (range, table): (RelativeRange, &Tensor),
        input: &Input,
        dropout: Dropout<'_>,
    ) -> Tensor {
        let table = relative::dropped(table, self.application, dropout);
        let projected = self.query_key_value.forward(&table).view([table.size()[0], 3, self.heads, -1]);
        let (projected, rows) = (projected.unbind(1), input.relative_rows(range));
        // Score (i, j) has the distance i - j. `scores` takes the rows in the order of j - i for queries at i.
        let content_to_position = relative::scores(contents[0], &projected[1].index_select(0, &rows.backward));
        let position_to_content = relative::scores(contents[1], &projected[0].index_select(0, &rows.forward));
        content_to_position + position_to_content.transpose(2, 3)
    }
}
