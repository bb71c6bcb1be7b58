//! From a dataset to the micro-batches of a rank.
//!
//! - [`order`]: the order of the samples, a pure function of (row groups, seed, epoch)
//! - [`batch`]: the tokens of a micro-batch, masked
//! - [`halves`]: a global batch in two halves
//! - [`groups`]: the row groups that a batch needs, each decoded once
//! - [`reader`]: a rank's part of one global batch after the other
//! - [`loader`]: makes them ahead of the training loop

pub mod batch;
pub mod groups;
pub mod halves;
pub mod loader;
pub mod order;
pub mod reader;

pub use batch::MicroBatch;
pub use loader::{GlobalBatch, Loader, Share, Source, Wanted};
