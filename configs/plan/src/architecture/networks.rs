//! Networks of a run, and the order of their parameters in memory.

use std::collections::HashSet;

use super::module::TensorId;
use super::network::{Network, Segment};
use super::tensor::Tensor;

/// Alignment of parameters in memory, in elements: 128 bytes.
pub const ALIGNMENT: usize = 32;

/// Networks of a run, in the order of their forward passes. They may share parameters.
#[derive(Debug, Clone)]
pub struct Architecture {
    networks: Vec<Network>,
}

impl Architecture {
    /// Creates an architecture. The position of a network in the list becomes its index.
    pub fn from_networks(networks: Vec<Network>) -> Self {
        let numbered = networks.into_iter().enumerate().map(|(number, network)| Network { number, ..network });
        Self { networks: numbered.collect() }
    }

    /// Returns the networks, in the order of their forward passes.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Returns the number of layers of the deepest network.
    pub fn layers(&self) -> usize {
        self.networks.iter().map(Network::layers).max().unwrap_or(0)
    }

    /// Returns the vocabulary size, in tokens.
    pub fn vocabulary(&self) -> usize {
        self.networks.first().map_or(0, |network| network.vocabulary)
    }

    /// Returns all tensors in the order in which their gradients become final. Backward passes run network by network.
    /// In a network, the backward pass runs from the heads to the embeddings. A gradient is final after the backward
    /// passes of all segments that read the tensor.
    pub fn tensors(&self) -> Vec<Tensor> {
        let segments = |network: &Network| network.segments.iter().rev().cloned().collect::<Vec<Segment>>();
        let backward =
            self.networks.iter().flat_map(|network| segments(network).into_iter().map(move |own| (network, own)));
        let mut found = HashSet::new();
        let mut tensors = Vec::new();
        // This loop runs in reverse order of the backward pass. The first segment in the loop that reads a tensor is
        // the last segment that adds to its gradient.
        for (index, (network, segment)) in backward.enumerate().collect::<Vec<_>>().into_iter().rev() {
            let mut groups = network.tensor_groups(&segment);
            groups.iter_mut().for_each(|group| group.retain(|id| found.insert(*id)));
            let of = |id: &TensorId| self.networks.get(id.network)?.tensor(*id, index + 1);
            tensors.push(groups.iter().rev().flatten().filter_map(of).collect::<Vec<_>>());
        }
        tensors.into_iter().rev().flatten().collect()
    }

    /// Returns the tensors that network `number` reads, in the order of [`Architecture::tensors`].
    pub fn tensors_of(&self, number: usize) -> Vec<Tensor> {
        let Some(network) = self.networks.get(number) else { return Vec::new() };
        let groups = network.segments.iter().flat_map(|segment| network.tensor_groups(segment));
        let read: HashSet<TensorId> = groups.flatten().collect();
        self.tensors().into_iter().filter(|tensor| read.contains(&tensor.id)).collect()
    }

    /// Returns the total number of parameters.
    pub fn parameters(&self) -> u64 {
        self.networks.iter().map(Network::parameters).sum()
    }
}

impl From<Network> for Architecture {
    fn from(network: Network) -> Self {
        Self::from_networks(vec![network])
    }
}
