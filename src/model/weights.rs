//! The parameters as the code of one network sees them.

use lambert_config::run::{Model, Norm};
use lambert_plan::architecture::{Leaf, Network, Normalises, Part};
use tch::Tensor;

use crate::state::Parameters;

/// A network, the parameters that it computes with, some of which another network may own, and its configuration.
#[derive(Clone, Copy)]
pub struct NetworkWeights<'a> {
    /// All parameters.
    pub parameters: &'a Parameters,
    /// The network.
    pub network: &'a Network,
    /// The configuration.
    pub model: &'a Model,
}

impl<'a> NetworkWeights<'a> {
    /// Network `number` of the architecture of `parameters`.
    pub fn of(parameters: &'a Parameters, number: usize, model: &'a Model) -> Self {
        Self { parameters, network: &parameters.architecture().networks()[number], model }
    }

    /// A handle to one parameter.
    pub fn tensor(self, part: Part, layer: Option<usize>, leaf: Leaf) -> Tensor {
        self.parameters.tensor(self.network.id(part, layer, leaf))
    }

    /// Where the layers normalise: behind their sums, or what goes into them.
    pub fn norm(self) -> Norm {
        let attention = self.network.module(Part::AttentionNorm).map(|module| module.normalises);
        if attention == Some(Normalises::InnerSum) { Norm::Post } else { Norm::Pre }
    }
}
