//! Training engine of lambert, the only code of the project that uses tensors.
//!
//! Suggested reading order:
//!
//! - [`train`]: training loop (stages, steps, gradients, evaluation)
//! - [`worker`]: process of a rank (session, control channel, agreement between ranks, logs)
//! - [`state`]: training state, as tensors on one device
//! - [`data`]: loader that reads a dataset into micro-batches; a pure function assigns samples to batches and ranks
//! - [`masking`]: token masking, a pure function of (seed, epoch, sample)
//! - [`model`]: embeddings, encoder and heads, over the parameters of the state
//! - [`objective`]: training objective, as forward passes and their losses
//! - [`optim`]: LAMB, AdamW, StableAdamW and Muon
//! - [`recovery`]: divergence guard and detection of damage
//! - [`stages`]: start of a stage, model growth
//! - [`checkpoint`]: loading and saving of the training state in the store of the run
//! - [`inference`]: inference with a trained model
//! - [`mod@bench`]: benchmark of a stage
//! - [`gpu`]: compute device of a rank, GPU driver
//! - [`kernels`]: custom kernels behind a trait that each kind of device implements
//! - [`torch`]: thin layer over libtorch
//! - [`error`]: errors and exit codes
//! - `allocator`: jemalloc in place of malloc

#![allow(missing_docs, reason = "not a library: where a name says it all, no comment repeats it")]

// Code shared by unit tests and tests/gpu refers to the crate by name.
#[cfg(test)]
extern crate self as lambert_worker;

mod allocator;
pub mod bench;
pub mod checkpoint;
pub mod data;
pub mod error;
pub mod gpu;
pub mod inference;
pub mod kernels;
pub mod masking;
pub mod model;
pub mod objective;
pub mod optim;
pub mod recovery;
pub mod stages;
pub mod state;
pub mod torch;
pub mod train;
pub mod worker;

pub use error::Error;
