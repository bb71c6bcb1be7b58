//! From a dataset to the micro-batches of a rank.
//!
//! - [`order`]: the order of the samples, a pure function of (row groups, seed, epoch)
//! - [`batch`]: the tokens of a micro-batch, masked; [`GlobalBatch`]: a rank's micro-batches
//! - [`halves`]: a global batch in two halves
//! - [`groups`]: the row groups that a batch needs, each decoded once
//! - [`reader`]: a rank's part of one global batch after the other
//! - [`loader`]: makes them ahead of the training loop

pub mod batch;
mod global_batch;
pub mod groups;
pub mod halves;
pub mod loader;
pub mod order;
pub mod reader;
mod request;

pub use batch::MicroBatch;
pub use global_batch::{GlobalBatch, Share};
pub use loader::Loader;
pub use request::{Demand, Source, Wanted};
