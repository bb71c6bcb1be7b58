//! Token embeddings and, if the network has them, position and segment embeddings, normalization and projection.

use lambert_plan::architecture::{ModuleKind, ParamKind, SegmentKind};
use tch::{Kind, Tensor};

use super::block::SegmentBlock;
use super::dropout::DropoutSite;
use super::{Dropout, Linear, NetworkWeights, Normalization};
use crate::model::input::Input;
use crate::torch;

pub struct Embeddings {
    words: Tensor,
    /// Position embeddings, if the network has them.
    positions: Option<Tensor>,
    /// Segment embeddings, if the network has them.
    segments: Option<Tensor>,
    norm: Option<Normalization>,
    /// Projection to the hidden size, if the network has one.
    projection: Option<Linear>,
    /// Dtype of the encoder layers.
    compute_dtype: Kind,
}

impl Embeddings {
    pub fn new(weights: NetworkWeights<'_>) -> Self {
        let segments = &weights.network.segments;
        let embed = segments.iter().find(|segment| segment.kind == SegmentKind::Embed);
        let has = |part| embed.is_some_and(|embed| embed.module(part).is_some());
        let table = |part| weights.tensor(part, None, ParamKind::Weight);
        Self {
            words: table(ModuleKind::WordEmbeddings),
            positions: has(ModuleKind::PositionEmbeddings).then(|| table(ModuleKind::PositionEmbeddings)),
            segments: has(ModuleKind::SegmentEmbeddings).then(|| table(ModuleKind::SegmentEmbeddings)),
            norm: has(ModuleKind::EmbeddingNorm).then(|| Normalization::new(weights, ModuleKind::EmbeddingNorm, None)),
            projection: has(ModuleKind::EmbeddingProjection)
                .then(|| Linear::new(weights, ModuleKind::EmbeddingProjection, None)),
            compute_dtype: super::compute_dtype(weights.model),
        }
    }
}

impl SegmentBlock for Embeddings {
    /// Maps ids \[batch, sequence\] to hidden states \[batch, sequence, hidden\].
    fn forward(&self, _: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let seq_len = input.ids.size()[1];
        let words = torch::embedding(&self.words, &input.ids);
        let sum = match &self.segments {
            // Every token has the only segment.
            Some(segments) if segments.size()[0] == 1 => words + segments,
            Some(segments) => words + torch::embedding(segments, &input.segments),
            None => words,
        };
        let sum = match (&self.positions, &input.sequences) {
            (Some(positions), Some(sequences)) => sum + torch::embedding(positions, &sequences.positions),
            (Some(positions), None) => sum + positions.narrow(0, 0, seq_len),
            (None, _) => sum,
        };
        let embedded = match &self.norm {
            Some(norm) => norm.forward(&sum),
            None => sum,
        };
        let dropped = dropout.hidden(embedded, None, DropoutSite::Embeddings).to_kind(self.compute_dtype);
        vec![match &self.projection {
            Some(projection) => projection.forward(&dropped),
            None => dropped,
        }]
    }
}
