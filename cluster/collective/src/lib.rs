//! Collective operations between the ranks of a run.
//!
//! A rank has two [`Endpoints`]: a [`Group`] for host bytes and small numbers (agreement, broadcast, gather, barrier), and a
//! [`Reducer`] for [`Bucket`]s of gradients, which are started and awaited later. A bucket is raw memory with its place,
//! never a tensor. Three backends pass one conformance suite: [`local`] joins threads of one process, [`mpi`] joins processes
//! through MPI, and [`nccl`] sums between their cards, with one of the others beside it. [`world`] tells, before anything is started,
//! whether a launcher has made this process a rank; [`launchers`] is what a rank knows of each launcher.
//!
//! Sums have a fixed order: they are equal on all ranks, and equal again when the same world sums the same numbers in buckets of
//! the same lengths.

mod bucket;
mod error;
mod events;
mod group;
/// The launchers that start ranks.
pub mod launchers;
/// Ranks as threads of one process.
pub mod local;
/// Ranks as processes joined by MPI.
pub mod mpi;
/// Sums between cards by NCCL.
pub mod nccl;
mod reducer;
/// What a step costs in a cluster, by formula.
pub mod scaling;
/// The rank that a launcher has made this process.
pub mod world;

pub use bucket::{Bucket, Place};
pub use error::{Error, Result};
pub use group::Group;
pub use reducer::{Pending, Reducer, all_reduce};

/// What ties one rank to the others.
pub struct Endpoints {
    /// For agreement.
    pub group: Box<dyn Group>,
    /// For gradients.
    pub reducer: Box<dyn Reducer>,
}

impl Endpoints {
    /// Leaves in order, after the last operation. Every rank must call it; a rank that ends without it has failed, and
    /// MPI then ends the others.
    ///
    /// # Errors
    /// What the backend says.
    pub fn finish(self) -> Result<()> {
        drop(self.reducer);
        self.group.finish()
    }
}
