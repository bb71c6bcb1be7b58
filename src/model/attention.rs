//! Multi-head self-attention, global or local, with or without rotary positions.

use lambert_plan::architecture::ModuleKind;
use tch::Tensor;

use super::dropout::{DropoutSite, LayerDropout};
use super::relative;
use super::relative_range::RelativeRange;
use super::residual;
use super::{Dropout, Linear, NetworkWeights, Normalization};
use crate::kernels::RelativeScores;
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
        let mask = || input.added_mask(self.reach, query.kind());
        let heads = |tensor: &Tensor| tensor.transpose(1, 2);
        let mixed = if let Some(relative) = self.relative.zip(x.relative) {
            self.relative_weights([&query, &key], relative, input, dropout).matmul(&heads(&value))
        } else if dropout.needs_attention_weights() {
            let scores = heads(&(&query * (1.0 / (head_size as f64).sqrt()))).matmul(&heads(&key).transpose(2, 3));
            let scores = if let Some(mask) = mask() { scores + mask } else { scores };
            dropout
                .attention(scores.softmax(-1, None), self.site(LayerDropout::AttentionWeights))
                .matmul(&heads(&value))
        } else {
            // libtorch's fused kernels do not store the attention weights.
            let dropped = dropout.seed_fused_attention(self.site(LayerDropout::AttentionWeights));
            let [q, k, v] = [&query, &key, &value].map(heads);
            Tensor::scaled_dot_product_attention(&q, &k, &v, mask(), dropped, false, None, false)
        };
        mixed.transpose(1, 2).reshape([size[0], size[1], -1])
    }

    /// Returns the attention weights with relative positions, after dropout, \[batch, heads, sequence, sequence\]. The positions
    /// have the same projections as the contents, queries and keys.
    fn relative_weights(
        &self,
        [query, key]: [&Tensor; 2],
        (range, table): (RelativeRange, &Tensor),
        input: &Input,
        dropout: Dropout<'_>,
    ) -> Tensor {
        let size = query.size();
        let scale = 1.0 / ((3 * size[3]) as f64).sqrt();
        let (query, scaled_key) = (query * scale, key * scale);
        let contents = query.transpose(1, 2).matmul(&key.permute([0, 2, 3, 1]));
        let table = relative::dropped(table, self.application, dropout);
        let projected = self.query_key_value.forward(&table).view([table.size()[0], 3, self.heads, -1]);
        let (projected, rows) = (projected.unbind(1), input.relative_rows(range));
        // Score (i, j) has the distance i - j. `by_distance` takes the rows in the order of j - i for queries at i.
        let queries = relative::by_distance(&query, &projected[1].index_select(0, &rows.backward));
        let keys = relative::by_distance(&scaled_key, &projected[0].index_select(0, &rows.forward));
        let scores = RelativeScores { contents: &contents, queries: &queries, keys: &keys };
        let (mask, site) = (input.attention_mask.as_ref(), self.site(LayerDropout::AttentionWeights));
        match dropout.kernels().filter(|kernels| kernels.has_relative_softmax(size[1])) {
            Some(kernels) => {
                dropout.with_attention_params(site, |params| kernels.relative_softmax(&scores, mask, params))
            }
            None => dropout.attention(relative::softmax(&scores, mask), site),
        }
    }
}
