//! What a user writes: the configuration of a run and of a preparation, as types.
//!
//! - [`load`]: file < environment < `--set`, unknown keys refused, every fault listed at once
//! - [`prep`]: a preparation (text to dataset)
//! - [`run`]: a run (a list of stages)
//! - [`gpu_environment`]: environment variables that a rank with a GPU needs
//! - [`exit`]: the exit codes of both programs
//!
//! What follows from a configuration is the crate lambert-plan's. This crate imports no other crate of the workspace, no tensors, no
//! MPI and no async runtime.

pub mod exit;
pub mod gpu_environment;
pub mod load;
pub mod prep;
pub mod run;
mod slurm;

pub use load::{Checked, ConfigError, Fault, Layers};
pub use prep::PrepConfig;
pub use run::RunConfig;
