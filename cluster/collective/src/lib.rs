//! Collective operations between the ranks of a run.
//!
//! A [`Collective`] is one rank's end of a group. It sees host slices, never tensors. Two backends pass one
//! conformance suite: [`local`] joins threads of one process, [`mpi`] joins processes through MPI. [`world`]
//! tells, before anything is started, whether a launcher has made this process a rank.
//!
//! Calls block, take `&mut self` and are made in the same order on every rank: so one thread of a worker owns
//! the collective, and whoever wants a transfer asks that thread. Sums have a fixed order: they are equal on all
//! ranks, and equal again when the same world sums the same numbers.

/// The trait and its errors.
mod collective;
/// Ranks as threads of one process.
pub mod local;
/// Ranks as processes joined by MPI.
pub mod mpi;
/// Who started this process, as which rank.
pub mod world;

pub use collective::{Collective, Error, Result};
