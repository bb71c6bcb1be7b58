//! Protection of a run against divergence and damage.
//!
//! - [`guard`]: divergence guard, which skips updates and triggers rollbacks
//! - [`skipped_samples`]: samples and shards that are no longer drawn
//! - [`spikes`]: spikes of the loss and of the gradient norm
//! - [`replicas`]: comparison of the weights of all ranks

pub mod guard;
pub mod replicas;
pub mod skipped_samples;
pub mod spikes;
