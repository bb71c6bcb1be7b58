//! Relative positions of DeBERTa: the table of embeddings, and its part in the attention scores.

use lambert_plan::architecture::{ModuleKind, ParamKind};
use tch::{Kind, Tensor};

use super::block::SegmentBlock;
use super::dropout::DropoutSite;
use super::{Dropout, NetworkWeights, Normalization};
use crate::model::input::Input;

/// Table of relative positions with its normalization. It is computed once per forward pass, and each layer reads it.
pub struct RelativeEmbeddings {
    table: Tensor,
    norm: Normalization,
    compute_dtype: Kind,
}

impl RelativeEmbeddings {
    pub fn new(weights: NetworkWeights<'_>) -> Self {
        Self {
            table: weights.tensor(ModuleKind::RelativeEmbeddings, None, ParamKind::Weight),
            norm: Normalization::new(weights, ModuleKind::RelativeNorm, None),
            compute_dtype: super::compute_dtype(weights.model),
        }
    }
}

impl SegmentBlock for RelativeEmbeddings {
    /// Returns the normalized table, \[2 x buckets, hidden\].
    fn forward(&self, _: &[&Tensor], _: &Input, _: Dropout<'_>) -> Vec<Tensor> {
        vec![self.norm.forward(&self.table).to_kind(self.compute_dtype)]
    }
}

/// Returns the scores of queries with the positions of keys: element (i, j) of the last two dimensions is `x` i times the row
/// of `table` for the distance j - i. `x` is \[batch, sequence, heads, head size\]. `table` is
/// \[2 x sequence - 1, heads, head size\], in the order of the distance. The result is \[batch, heads, sequence, sequence\].
pub fn scores(x: &Tensor, table: &Tensor) -> Tensor {
    let size = x.size();
    let (batch, seq_len, heads) = (size[0], size[1], size[2]);
    let by_head = x.permute([2, 0, 1, 3]).reshape([heads, batch * seq_len, -1]);
    let by_distance = by_head.matmul(&table.permute([1, 2, 0]));
    // Row i starts at distance 1 - S. The wanted elements of row i start S - 1 - i columns later. In memory, these starts
    // are 2 S - 2 elements apart.
    let flat = by_distance.view([heads, batch, seq_len * (2 * seq_len - 1)]);
    let skewed = flat.narrow(2, seq_len - 1, seq_len * (2 * seq_len - 2));
    let skewed = skewed.view([heads, batch, seq_len, 2 * seq_len - 2]).narrow(3, 0, seq_len);
    skewed.transpose(0, 1)
}

/// Absolute positions that are added to hidden states: the first queries of the enhanced mask decoder.
pub struct PositionQueries {
    positions: Tensor,
}

impl PositionQueries {
    pub fn new(weights: NetworkWeights<'_>) -> Self {
        Self { positions: weights.tensor(ModuleKind::PositionEmbeddings, None, ParamKind::Weight) }
    }
}

impl SegmentBlock for PositionQueries {
    /// Adds the positions to hidden states \[batch, sequence, hidden\].
    fn forward(&self, inputs: &[&Tensor], input: &Input, _: Dropout<'_>) -> Vec<Tensor> {
        let positions = self.positions.narrow(0, 0, input.ids.size()[1]);
        vec![inputs[0] + positions.to_kind(inputs[0].kind())]
    }
}

/// Dropout of the table, with the same mask for every sample.
pub fn dropped(table: &Tensor, application: usize, dropout: Dropout<'_>) -> Tensor {
    dropout.shared(table, DropoutSite::RelativePositions { application })
}
