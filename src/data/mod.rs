//! From a dataset to the micro-batches of a rank.
//!
//! - [`order`]: the order of the samples, a pure function of (row groups, seed, epoch)
//! - [`detours`]: what is left out of it
//! - [`batch`]: the tokens of a micro-batch, masked
//! - [`loader`]: reads ahead on a thread of its own

pub mod batch;
pub mod detours;
pub mod loader;
pub mod order;

pub use batch::MicroBatch;
pub use loader::{GlobalBatch, Loader, Source};
