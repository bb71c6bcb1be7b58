//! What lambert is told and what its two programs tell each other, as types.
//!
//! - [`load`]: file < environment < `--set`, unknown keys refused, every fault listed at once
//! - [`prep`]: a preparation (text to dataset)
//! - [`run`]: a run (a list of stages)
//! - [`plan`]: the stages of a run laid end to end, in steps
//! - [`dealing`]: which samples of a global batch a rank works on, and in which micro-batches
//! - [`schedule`]: the learning rate of a step
//! - [`architecture`]: what a model is made of: its parts and their tensors
//! - [`objectives`]: what is learnt, by name, and how it is scored
//! - [`flops`]: parameters and floating-point operations of a model, by formula
//! - [`gpu_environment`]: environment variables that a rank with a GPU needs
//! - [`memory`]: bytes of its training state, and those that this host has
//! - [`control`]: the messages between the ranks and the coordinator
//! - [`exit`]: the exit codes of both programs
//!
//! This crate imports no other crate of the workspace, no tensors, no MPI and no async runtime.

pub mod architecture;
pub mod control;
pub mod dealing;
pub mod exit;
pub mod flops;
pub mod gpu_environment;
pub mod load;
pub mod memory;
pub mod objectives;
pub mod plan;
pub mod prep;
pub mod run;
pub mod schedule;
mod slurm;

pub use load::{Checked, ConfigError, Fault, Layers};
pub use prep::PrepConfig;
pub use run::RunConfig;
