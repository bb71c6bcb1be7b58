//! Share of each rank in the CPUs of its host.

use lambert_plan::memory;

/// Numbers of the CPUs of a host, and of the ranks that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostShare {
    /// Number of CPUs that this process may run on.
    pub processors: usize,
    /// Number of ranks of this run on the host.
    pub ranks: usize,
}

impl HostShare {
    /// Counts CPUs and ranks. Call this before the rank is pinned to some of the CPUs.
    pub fn count() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { processors, ranks: lambert_collective::world::detect().map_or(1, |world| world.local_size) }
    }

    /// Number of reader threads in the data loader of a rank.
    pub fn readers(self) -> usize {
        self.processors.div_ceil(self.ranks.max(1)).min(memory::READERS)
    }
}
