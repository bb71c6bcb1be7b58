//! The training engine of lambert: the only code of the project that knows tensors.
//!
//! Read in this order:
//!
//! - [`train`]: the loop, from a run's URL to its last checkpoint; a stage, a step, its gradients and its evaluation
//! - [`worker`]: a rank's process: session, control channel, agreement with other ranks, logs
//! - [`state`]: the training state, as tensors on one device
//! - [`data`]: dataset to micro-batches; which sample, which micro-batch, which rank are pure functions
//! - [`masking`]: which tokens are masked, a pure function of (seed, epoch, sample)
//! - [`model`]: embeddings, encoder, heads, over the parameters of the state
//! - [`objective`]: what is learnt: passes and their losses
//! - [`optim`]: the rules of LAMB and AdamW
//! - [`recovery`]: protection against divergence and damage
//! - [`stages`]: the beginning of a stage, and growth
//! - [`checkpoint`]: the training state to and from the run's store
//! - [`inference`]: a trained model, for those that only read it
//! - [`mod@bench`]: what a stage takes, measured
//! - [`gpu`]: what a rank computes on, and what a GPU needs for that
//! - [`kernels`]: what is computed by loops of our own, a trait with an implementor for each kind of device
//! - [`torch`]: the thinnest layer over libtorch
//! - [`error`]: everything that can go wrong, and the exit code of each
//! - `allocator`: jemalloc in place of malloc

// Code that the unit tests share with tests/gpu names this crate.
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
