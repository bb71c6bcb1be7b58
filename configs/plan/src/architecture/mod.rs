//! Descriptions of networks: values made of segments and modules, which compute nothing. A family of encoders is one file here
//! and a line in [`Network::new`]. From a description follow the names and shapes of the parameters and their order in memory,
//! FLOPs, memory, growth, and what an export cuts off.

mod bert;
mod module;
mod network;
mod networks;
mod tensor;

pub use module::{Each, Form, Head, Leaf, Module, Normalises, Part, Role, TensorId};
pub use network::{Network, Segment, SegmentKind, Value};
pub use networks::{ALIGNMENT, Architecture};
pub use tensor::Tensor;

use serde_json::Value as Json;

use lambert_config::run::{Family, Model};

/// Keys of a run's `[model]` that decide which tensors there are and what shapes they have.
pub const SHAPING: [&str; 8] =
    ["family", "layers", "hidden", "intermediate", "positions", "norm", "tied_decoder", "pad_vocabulary_to"];

impl Network {
    /// The network of a configuration with at least the heads `needed`, `layers` deep, for a vocabulary of so many tokens.
    pub fn new(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Self {
        match model.family {
            Family::Bert => bert::network(model, needed, layers, vocabulary),
        }
    }
}

/// How transformers knows a run's model.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformersModel {
    /// The class that loads it.
    pub class: &'static str,
    /// The content of its `config.json`.
    pub config: Json,
}

impl TransformersModel {
    /// The model of a configuration with these `heads`, `layers` deep, for a vocabulary of so many tokens, of which `pad` is the
    /// padding token.
    pub fn new(model: &Model, heads: &[Head], layers: usize, vocabulary: usize, pad: u32) -> Self {
        match model.family {
            Family::Bert => bert::transformers(model, heads, layers, vocabulary, pad),
        }
    }
}

impl Architecture {
    /// The networks of a model with the heads of its family only, `layers` deep, for a vocabulary of so many tokens.
    pub fn new(model: &Model, layers: usize, vocabulary: usize) -> Self {
        Network::new(model, &[], layers, vocabulary).into()
    }
}

#[cfg(test)]
mod tests;
