//! Network descriptions. A description is data: it lists segments and modules but computes nothing. Each family of
//! encoders has one file in this directory and one arm in [`Network::new`]. Parameter names, shapes and memory order,
//! FLOPs, activation memory, growth and exports all derive from a description.

mod bert;
mod module;
mod network;
mod networks;
mod tensor;

pub use module::{CostUnit, Head, Module, ModuleKind, NormInput, Op, ParamKind, Role, TensorId};
pub use network::{Network, Segment, SegmentKind, SegmentOutput};
pub use networks::{ALIGNMENT, Architecture};
pub use tensor::Tensor;

use serde_json::Value as Json;

use lambert_config::run::{Family, Model};

/// Keys of `[model]` that determine the set and the shapes of the parameters.
pub const SHAPING: [&str; 8] =
    ["family", "layers", "hidden", "intermediate", "positions", "norm", "tied_decoder", "pad_vocabulary_to"];

impl Network {
    /// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
    /// tokens.
    pub fn new(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Self {
        match model.family {
            Family::Bert => bert::network(model, needed, layers, vocabulary),
        }
    }
}

/// Model class and configuration for Hugging Face Transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformersModel {
    /// Class that loads the model.
    pub class: &'static str,
    /// Content of `config.json`.
    pub config: Json,
}

impl TransformersModel {
    /// Describes a model with these `heads`, `layers` layers and a vocabulary of `vocabulary` tokens. `pad` is the id
    /// of the padding token.
    pub fn new(model: &Model, heads: &[Head], layers: usize, vocabulary: usize, pad: u32) -> Self {
        match model.family {
            Family::Bert => bert::transformers(model, heads, layers, vocabulary, pad),
        }
    }
}

impl Architecture {
    /// Describes a model with only the heads of its family, for `layers` layers and `vocabulary` tokens.
    pub fn new(model: &Model, layers: usize, vocabulary: usize) -> Self {
        Network::new(model, &[], layers, vocabulary).into()
    }
}

#[cfg(test)]
mod tests;
