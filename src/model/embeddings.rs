//! Token + position + segment embeddings, normalised unless the layers do that first.

use lambert_config::architecture::{Leaf, Part, TensorId};
use lambert_config::run::{self, Norm};
use tch::{Kind, Tensor};

use super::block::Block;
use super::dropout::Site;
use super::{Dropout, LayerNorm};
use crate::input::Input;
use crate::state::Parameters;
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
    pub fn new(parameters: &Parameters, model: &run::Model) -> Self {
        let table = |part| parameters.tensor(TensorId::new(part, Leaf::Weight));
        Self {
            words: table(Part::WordEmbeddings),
            positions: table(Part::PositionEmbeddings),
            segments: table(Part::SegmentEmbeddings),
            norm: (model.norm == Norm::Post).then(|| LayerNorm::new(parameters, Part::EmbeddingNorm, None, model)),
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
