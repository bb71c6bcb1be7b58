//! Types for the configuration of training runs and of data preparation.
//!
//! - [`load`]: layered loading (file < environment < `--set`); rejects unknown keys and lists all errors at once
//! - [`prep`]: data preparation (text to dataset)
//! - [`run`]: training run (a list of stages)
//! - [`duration`]: conversion of durations
//! - [`gpu_environment`]: environment variables for ranks with a GPU
//! - [`exit`]: exit codes of both programs
//!
//! The crate lambert-plan derives networks, memory and schedules from a configuration. This crate has no dependency on
//! other crates of the workspace, tensors, MPI or an async runtime.

pub mod duration;
pub mod exit;
pub mod gpu_environment;
pub mod load;
pub mod prep;
pub mod run;
mod slurm;

pub use load::{Checked, ConfigError, ConfigIssue, ConfigKind, Layers};
pub use prep::PrepConfig;
pub use run::RunConfig;
