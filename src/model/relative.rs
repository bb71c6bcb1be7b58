//! Relative positions of DeBERTa: the table of embeddings, and its part in the attention scores.

use lambert_plan::architecture::{ModuleKind, ParamKind};
use tch::{Kind, Tensor};

use super::block::SegmentBlock;
use super::dropout::DropoutSite;
use super::{Dropout, NetworkWeights, Normalization};
use crate::kernels::RelativeScores;
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

/// Returns the scores of `x` \[batch, sequence, heads, head size\] with positions: each element times each row of `table`
/// \[2 x sequence - 1, heads, head size\], in the order of the distance. The result is
/// \[heads, batch x sequence, 2 x sequence - 1\].
pub fn by_distance(x: &Tensor, table: &Tensor) -> Tensor {
    let size = x.size();
    let by_head = x.permute([2, 0, 1, 3]).reshape([size[2], size[0] * size[1], -1]);
    by_head.matmul(&table.permute([1, 2, 0]))
}

/// Returns the attention weights without dropout, with single libtorch operations
/// ([`Kernels::relative_softmax`](crate::kernels::Kernels::relative_softmax)).
pub fn softmax(scores: &RelativeScores<'_>, mask: Option<&Tensor>) -> Tensor {
    let batch = scores.contents.size()[0];
    let mut sum = by_key(scores.queries, batch) + by_key(scores.keys, batch).transpose(2, 3) + scores.contents;
    if let Some(mask) = mask {
        sum = sum.masked_fill(&mask.logical_not(), f64::NEG_INFINITY);
    }
    sum.softmax(-1, None)
}

/// Returns the scores by key: element (i, j) of the last two dimensions is the score of token i for the distance j - i. The result
/// is a view, \[batch, heads, sequence, sequence\].
fn by_key(by_distance: &Tensor, batch: i64) -> Tensor {
    let size = by_distance.size();
    let (heads, seq_len) = (size[0], size[1] / batch);
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
