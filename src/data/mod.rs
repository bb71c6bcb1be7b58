//! Data loading: from a dataset to the micro-batches of a rank.
//!
//! - [`mixture`]: dataset of each sample, a pure function of (weights, seed, number)
//! - [`order`]: sample order, a pure function of (row groups, seed, epoch)
//! - [`batch`]: masked token arrays of a micro-batch
//! - [`span_targets`]: tokens of masked spans, with the tokens beside the spans
//! - [`GlobalBatch`]: micro-batches of a rank
//! - [`halves`]: split of a global batch for the gradient noise scale
//! - [`row_group_cache`]: decoded row groups
//! - `dataset_reader`: samples of one dataset
//! - [`reader`]: builds global batches
//! - [`loader`]: prefetches global batches for the training loop
//!
//! A sample has several numbers, all of them counted from 0:
//!
//! | number | counts | used by |
//! |---|---|---|
//! | mixture number | samples of a mixture, over all epochs | batches, skipped samples, divergence guard |
//! | dataset number | samples of a dataset, over all epochs and mixtures | cursors of the training state, `dataset_reader` |
//! | epoch index | samples of a dataset in the shuffled order of one epoch | [`order`] |
//! | row | samples of a dataset in file order | masks, fault injection |
//! | batch index | samples of a global batch | partition into micro-batches, [`halves`] |
//!
//! The mixture number and the dataset number are equal if a run has only one dataset. [`MixturePosition`] converts mixture
//! numbers to dataset numbers.

pub mod batch;
mod dataset_reader;
mod global_batch;
pub mod halves;
pub mod loader;
pub mod mixture;
pub mod order;
pub mod reader;
mod request;
pub mod row_group_cache;
pub mod span_targets;

pub use batch::MicroBatch;
pub use global_batch::{DatasetPart, GlobalBatch, RankBatch};
pub use loader::Loader;
pub use mixture::Mixture;
pub use request::{BatchRequest, LoaderOptions, MixturePosition, SampleSource};
