//! Protection of a run against divergence and damage.
//!
//! - [`guard`]: which steps change the weights, and when the run goes back to an earlier one
//! - [`skipped_samples`]: samples that are not drawn any more
//! - [`replicas`]: whether all ranks have the same weights

pub mod guard;
pub mod replicas;
pub mod skipped_samples;
