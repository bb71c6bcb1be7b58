//! Data loading: from a dataset to the micro-batches of a rank.
//!
//! - [`order`]: sample order, a pure function of (row groups, seed, epoch)
//! - [`batch`]: masked token arrays of a micro-batch
//! - [`GlobalBatch`]: micro-batches of a rank
//! - [`halves`]: split of a global batch for the gradient noise scale
//! - [`row_group_cache`]: decoded row groups
//! - [`reader`]: builds global batches
//! - [`loader`]: prefetches global batches for the training loop

pub mod batch;
mod global_batch;
pub mod halves;
pub mod loader;
pub mod order;
pub mod reader;
mod request;
pub mod row_group_cache;

pub use batch::MicroBatch;
pub use global_batch::{GlobalBatch, RankBatch};
pub use loader::Loader;
pub use request::{BatchRequest, LoaderOptions, SampleSource};
