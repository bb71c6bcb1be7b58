//! Descriptions of networks: values made of segments and modules, which compute nothing. A family of encoders is one file here
//! and a line in [`Network::new`]. From a description follow the names and shapes of the parameters and their order in memory,
//! FLOPs, memory, growth, and what an export cuts off.

mod bert;
mod module;
mod network;

pub use module::{Each, Form, Leaf, Module, Normalises, Part, Role, TensorId};
pub use network::{Network, Segment, SegmentKind, Tensor, Value};

use crate::run::Model;

/// Keys of a run's `[model]` that decide which tensors there are and what shapes they have.
pub const SHAPING: [&str; 7] =
    ["layers", "hidden", "intermediate", "positions", "norm", "tied_decoder", "pad_vocabulary_to"];

impl Network {
    /// The network of a configuration, `layers` deep, for a vocabulary of so many tokens.
    pub fn new(model: &Model, layers: usize, vocabulary: usize) -> Self {
        bert::network(model, layers, vocabulary)
    }
}

#[cfg(test)]
mod tests;
