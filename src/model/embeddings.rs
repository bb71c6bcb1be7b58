//! Token + position + segment embeddings, normalised unless the layers do that first.

use lambert_config::run::Norm;
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
    segments: Tensor,
    norm: Option<LayerNorm>,
    /// What the layers compute with.
    kind: Kind,
}

impl Embeddings {
    pub fn new(weights: NetworkWeights<'_>) -> Self {
        let model = weights.model;
        let table = |part| weights.tensor(part, None, Leaf::Weight);
        Self {
            words: table(Part::WordEmbeddings),
            positions: table(Part::PositionEmbeddings),
            segments: table(Part::SegmentEmbeddings),
            norm: (model.norm == Norm::Post).then(|| LayerNorm::new(weights, Part::EmbeddingNorm, None)),
            kind: super::kind(model),
        }
    }
}

impl Block for Embeddings {
    /// \[rows, width\] ids to \[rows, width, hidden\].
    fn forward(&self, _: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let width = input.ids.size()[1];
        let words = torch::embedding(&self.words, &input.ids);
        let segments = torch::embedding(&self.segments, &input.segments);
        let sum = words + segments + self.positions.narrow(0, 0, width);
        let embedded = match &self.norm {
            Some(norm) => norm.forward(&sum),
            None => sum,
        };
        vec![dropout.hidden(embedded, None, Site::Embeddings).to_kind(self.kind)]
    }
}
