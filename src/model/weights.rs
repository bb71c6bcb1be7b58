//! Access to the parameters of one network.

use lambert_config::run::{Model, Norm};
use lambert_plan::architecture::{ModuleKind, Network, NormInput, ParamKind, Segment};
use tch::Tensor;

use crate::state::Parameters;

/// Description, parameters and configuration of a network. Another network may own some of the parameters.
#[derive(Clone, Copy)]
pub struct NetworkWeights<'a> {
    /// Parameters of all networks.
    pub parameters: &'a Parameters,
    /// Network description.
    pub network: &'a Network,
    /// Model configuration.
    pub model: &'a Model,
}

impl<'a> NetworkWeights<'a> {
    /// Selects network `number` of the architecture of `parameters`.
    pub fn new(parameters: &'a Parameters, number: usize, model: &'a Model) -> Self {
        Self { parameters, network: &parameters.architecture().networks()[number], model }
    }

    /// Returns a tensor that shares the storage of a parameter.
    pub fn tensor(self, part: ModuleKind, layer: Option<usize>, leaf: ParamKind) -> Tensor {
        self.parameters.tensor(self.network.id(part, layer, leaf))
    }

    /// True if layer `layer` has a module of this kind.
    pub fn layer_has(self, layer: usize, part: ModuleKind) -> bool {
        self.segment_of_layer(layer).is_some_and(|segment| segment.module(part).is_some())
    }

    /// Returns the distance, in tokens, at which a token in layer `layer` still attends to others. `None`: any distance.
    pub fn attention_reach(self, layer: usize) -> Option<usize> {
        self.segment_of_layer(layer)?.attention_reach
    }

    fn segment_of_layer(self, layer: usize) -> Option<&'a Segment> {
        self.network.segments.iter().find(|segment| segment.layer == Some(layer))
    }

    /// True if the output of a module has dropout.
    pub fn drops(self, part: ModuleKind) -> bool {
        self.network.module(part).is_some_and(|module| module.is_dropped)
    }

    /// Layer norm placement: post-norm (after the residual sums) or pre-norm (before each sublayer).
    pub fn norm_placement(self) -> Norm {
        let attention = self.network.module(ModuleKind::AttentionNorm).map(|module| module.norm_input);
        if attention == Some(NormInput::InnerSum) { Norm::Post } else { Norm::Pre }
    }
}
