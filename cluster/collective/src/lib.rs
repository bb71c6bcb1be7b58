//! Collective operations between the ranks of a data-parallel job.
//!
//! Each rank has [`Endpoints`]: a [`Group`] for blocking collectives on host bytes and small numbers, and a [`Reducer`] for
//! asynchronous all-reduce of gradient [`Bucket`]s. A bucket is raw host or device memory, never a tensor. Three backends pass the
//! same conformance suite: [`local`] (threads of one process), [`mpi`] (processes) and [`nccl`] (GPUs, together with one of the
//! other two). [`world`] detects from the environment whether a launcher has started this process as a rank;
//! [`launchers`] lists the facts about each launcher.
//!
//! Sums are bitwise identical on all ranks. With [`local`] and [`mpi`] they have a fixed order of terms, so they are reproducible for
//! the same values, world size and bucket lengths; with [`nccl`] the order is NCCL's.

mod bucket;
mod error;
mod events;
mod group;
/// Launchers that start ranks.
pub mod launchers;
/// Backend for ranks that are threads of one process.
pub mod local;
/// Backend for processes that communicate over MPI.
pub mod mpi;
/// Backend for NVIDIA GPUs that communicate over NCCL.
pub mod nccl;
mod reducer;
/// Detection of the launcher and of this process's rank.
pub mod world;

pub use bucket::{Bucket, MemoryLocation};
pub use error::{Error, Result};
pub use group::Group;
pub use reducer::{PendingAllReduce, Reducer, all_reduce};

/// One rank's handles for communication with the other ranks.
pub struct Endpoints {
    /// Blocking collectives on bytes and small numbers.
    pub group: Box<dyn Group>,
    /// Asynchronous all-reduce of gradients.
    pub reducer: Box<dyn Reducer>,
}

impl Endpoints {
    /// Shuts communication down after the last operation. Every rank must call it: MPI treats a rank that exits without it as
    /// failed and kills the other ranks.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn finish(self) -> Result<()> {
        drop(self.reducer);
        self.group.finish()
    }
}
