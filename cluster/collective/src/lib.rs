//! Collective operations between the ranks of a data-parallel job.
//!
//! Each rank has [`Endpoints`], which consist of a [`Group`] and a [`Reducer`]. The group runs blocking collectives on
//! bytes in host memory and on a few numbers. The reducer runs asynchronous all-reduces of gradient [`Bucket`]s. A
//! bucket is raw host or device memory, never a tensor. There are three backends: [`local`] for threads of one process,
//! [`mpi`] for processes, and [`nccl`] for GPUs. [`nccl`] also needs one of the other two backends. All three pass the
//! same conformance suite. [`world`] detects from the environment whether a launcher has started this process as a
//! rank. [`launchers`] lists the properties of each launcher.
//!
//! Sums are bitwise identical on all ranks. With [`local`] and [`mpi`], the terms are added in a fixed order. Sums are
//! therefore reproducible for the same values, world size and bucket lengths. With [`nccl`], NCCL determines the order.

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
mod rank_list;
mod reducer;
/// Detection of the launcher and of the rank of this process.
pub mod world;

pub use bucket::{Bucket, MemoryLocation};
pub use error::{Error, Result};
pub use group::Group;
pub use rank_list::format_ranks;
pub use reducer::{PendingAllReduce, Reducer, all_reduce};

/// Handles with which one rank communicates with the other ranks.
pub struct Endpoints {
    /// Blocking collectives on bytes and small numbers.
    pub group: Box<dyn Group>,
    /// Asynchronous all-reduce of gradients.
    pub reducer: Box<dyn Reducer>,
}

impl Endpoints {
    /// Shuts communication down after the last operation. Every rank must call this function. MPI treats a rank that
    /// exits without this call as failed and kills the other ranks.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn finish(self) -> Result<()> {
        drop(self.reducer);
        self.group.finish()
    }
}
