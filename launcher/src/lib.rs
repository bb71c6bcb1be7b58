//! The front door of lambert.
//!
//! - [`cli`]: the command line as it is typed
//! - [`commands`]: one module a command; [`run`] is `lambert run`, the coordinator; [`decide`]: its decisions, a pure
//!   function
//! - [`slurm`]: the batch script of a run, and what Slurm is asked before it is queued
//! - [`observe`]: what watches a run: the console, the status, the lines of `--json`
//! - [`tune`]: runs that differ in some keys, compared
//! - [`status`]: `status.json`, which tells other machines where a run is
//! - [`store_writer`]: writes a run's small objects on a thread; [`logs`]: where ranks keep what they print; [`host`]: this host
//! - [`worker`]: where `lambert-worker` is
//! - [`console`]: standard output for results, standard error for everything else
//! - [`failure`]: errors on their way to the exit code; [`panics`]: defects on the same way
//!
//! This crate knows neither tensors nor MPI nor the training engine: it starts `lambert-worker` as a process and talks
//! to it over HTTP.

pub mod cli;
pub mod commands;
pub mod console;
pub mod decide;
pub mod failure;
pub mod host;
pub mod logs;
pub mod observe;
pub mod panics;
pub mod run;
pub mod slurm;
pub mod status;
pub mod store_writer;
pub mod tune;
pub mod worker;
