//! A rank's share of its host.

use lambert_plan::memory;

/// The processors of a host, and the ranks that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostShare {
    /// Processors that this process may run on.
    pub processors: usize,
    /// Ranks of this world on the host.
    pub ranks: usize,
}

impl HostShare {
    /// Counts them. Call this before the rank is bound to some of the processors.
    pub fn count() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { processors, ranks: lambert_collective::world::detect().map_or(1, |world| world.local_size) }
    }

    /// Threads of a rank that may read samples at the same time.
    pub fn readers(self) -> usize {
        self.processors.div_ceil(self.ranks.max(1)).min(memory::READERS)
    }
}
