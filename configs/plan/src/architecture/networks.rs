//! The networks that a run trains, and the order of their parameters in memory.

use std::collections::HashSet;

use super::module::TensorId;
use super::network::{Network, Segment};
use super::tensor::Tensor;

/// Parameters begin at multiples of so many elements in memory: 128 bytes.
pub const ALIGNMENT: usize = 32;

/// The networks that a run trains, in the order of their passes. They may share parameters.
#[derive(Debug, Clone)]
pub struct Architecture {
    networks: Vec<Network>,
}

impl Architecture {
    /// Of these networks; the number of each is its place.
    pub fn of(networks: Vec<Network>) -> Self {
        let numbered = networks.into_iter().enumerate().map(|(number, network)| Network { number, ..network });
        Self { networks: numbered.collect() }
    }

    /// The networks, in the order of their passes.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// How many layers the deepest network has.
    pub fn layers(&self) -> usize {
        self.networks.iter().map(Network::layers).max().unwrap_or(0)
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.networks.first().map_or(0, |network| network.vocabulary)
    }

    /// All tensors, in the order in which the backward passes are done with their gradients: the passes of the first network come
    /// first, and each goes from the heads down. A gradient is final once the last of the segments that read the tensor has had
    /// its backward pass.
    pub fn tensors(&self) -> Vec<Tensor> {
        let segments = |network: &Network| network.segments.iter().rev().cloned().collect::<Vec<Segment>>();
        let backward =
            self.networks.iter().flat_map(|network| segments(network).into_iter().map(move |own| (network, own)));
        let mut found = HashSet::new();
        let mut tensors = Vec::new();
        // From the last segment on: the first that reads a tensor there is the last that adds to its gradient.
        for (index, (network, segment)) in backward.enumerate().collect::<Vec<_>>().into_iter().rev() {
            let mut groups = network.reads(&segment);
            groups.iter_mut().for_each(|group| group.retain(|id| found.insert(*id)));
            let of = |id: &TensorId| self.networks.get(id.network)?.tensor(*id, index + 1);
            tensors.push(groups.iter().rev().flatten().filter_map(of).collect::<Vec<_>>());
        }
        tensors.into_iter().rev().flatten().collect()
    }

    /// Numbers in all tensors.
    pub fn parameters(&self) -> u64 {
        self.networks.iter().map(Network::parameters).sum()
    }
}

impl From<Network> for Architecture {
    fn from(network: Network) -> Self {
        Self::of(vec![network])
    }
}
