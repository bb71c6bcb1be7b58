//! Token and position embeddings, and segment embeddings where the network has them; normalised if it says so.

use lambert_plan::architecture::{Leaf, Part};
use tch::{Kind, Tensor};

use super::block::Block;
use super::dropout::Site;
use super::{Dropout, LayerNorm, NetworkWeights};
use crate::model::input::Input;
use crate::torch;

pub struct Embeddings {
    words: Tensor,
    positions: Tensor,
    /// None in a network without them.
    segments: Option<Tensor>,
    norm: Option<LayerNorm>,
    /// What the layers compute with.
    kind: Kind,
}

impl Embeddings {
    pub fn new(weights: NetworkWeights<'_>) -> Self {
        let has = |part| weights.network.module(part).is_some();
        let table = |part| weights.tensor(part, None, Leaf::Weight);
        Self {
            words: table(Part::WordEmbeddings),
            positions: table(Part::PositionEmbeddings),
            segments: has(Part::SegmentEmbeddings).then(|| table(Part::SegmentEmbeddings)),
            norm: has(Part::EmbeddingNorm).then(|| LayerNorm::new(weights, Part::EmbeddingNorm, None)),
            kind: super::kind(weights.model),
        }
    }
}

impl Block for Embeddings {
    /// \[rows, width\] ids to \[rows, width, hidden\].
    fn forward(&self, _: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let width = input.ids.size()[1];
        let words = torch::embedding(&self.words, &input.ids);
        let sum = match &self.segments {
            Some(segments) => words + torch::embedding(segments, &input.segments),
            None => words,
        };
        let sum = sum + self.positions.narrow(0, 0, width);
        let embedded = match &self.norm {
            Some(norm) => norm.forward(&sum),
            None => sum,
        };
        vec![dropout.hidden(embedded, None, Site::Embeddings).to_kind(self.kind)]
    }
}
