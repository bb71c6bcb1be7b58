//! Nodes, ranks and threads of a run.

use crate::cli;
use crate::host;

/// Ranks of a run and their resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of GPUs per node. 0: ranks compute on CPUs.
    pub gpus_per_node: usize,
    /// Number of ranks on all nodes.
    pub ranks: usize,
    /// CPU threads per rank.
    pub threads: usize,
    /// True on a Slurm cluster.
    pub is_slurm: bool,
}

/// GPUs per node on Slurm, where the nodes cannot be inspected.
const SLURM_GPUS: usize = 8;
/// Maximum number of CPU threads per rank. More threads per rank help little in matrix products of this size.
const MAX_THREADS: usize = 8;

impl Layout {
    /// Chooses one rank per GPU. Without GPUs, a machine gets one rank per eight CPUs, and a Slurm node one rank.
    pub fn new(arguments: &cli::Init) -> Self {
        let is_slurm = arguments.place == cli::InitTarget::Slurm;
        let found = || if is_slurm { SLURM_GPUS } else { host::gpus().len() };
        let gpus = arguments.gpus_per_node.map_or_else(found, usize::from);
        let nodes = arguments.nodes.map_or(1, usize::from);
        let cpus = if is_slurm { MAX_THREADS } else { std::thread::available_parallelism().map_or(1, usize::from) };
        Self::of(is_slurm, nodes, gpus, cpus)
    }

    fn of(is_slurm: bool, nodes: usize, gpus_per_node: usize, cpus: usize) -> Self {
        let per_node = if gpus_per_node > 0 { gpus_per_node } else { cpus.div_ceil(MAX_THREADS) };
        let threads = if gpus_per_node > 0 { 1 } else { cpus / per_node };
        Self { nodes, gpus_per_node, ranks: nodes * per_node, threads, is_slurm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_use_all_gpus_or_all_cpus() {
        let ranks = |slurm, nodes, gpus, cpus| {
            let layout = Layout::of(slurm, nodes, gpus, cpus);
            (layout.ranks, layout.threads)
        };
        assert_eq!(ranks(false, 1, 4, 64), (4, 1));
        assert_eq!(ranks(true, 3, 8, MAX_THREADS), (24, 1));
        assert_eq!(ranks(false, 1, 0, 2), (1, 2));
        assert_eq!(ranks(false, 1, 0, 64), (8, 8));
        assert_eq!(ranks(false, 1, 0, 9), (2, 4));
        assert_eq!(ranks(true, 2, 0, MAX_THREADS), (2, 8));
    }
}
