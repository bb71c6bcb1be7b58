//! Command-line program and coordinator of lambert.
//!
//! - [`cli`]: command-line arguments
//! - [`commands`]: one module per subcommand
//! - [`init`]: `lambert init`, the files of a first run
//! - [`run`]: `lambert run`, the coordinator; [`decide`]: decisions of the coordinator as a pure function
//! - [`observe`]: observers of a run: console, status file, `--json` lines
//! - [`slurm`]: batch scripts, job submission and job state
//! - [`tune`]: hyperparameter sweeps
//! - [`metrics`]: step records as tables; [`tensorboard`]: TensorBoard event files;
//!   [`report`]: reports of runs; [`data_report`]: reports of datasets; [`watch`]: web page that shows runs
//! - [`status`]: `status.json`, which reports the state of a run to other machines
//! - [`stored_config`]: the configuration in the store of a run
//! - [`store_writer`]: background writer for small objects; [`logs`]: log directories of the ranks; [`host`]: host
//!   name, clock, processes
//! - [`http`]: connections of HTTP servers; [`child_groups`]: children that do not belong to an attempt
//! - [`worker`]: locates and runs `lambert-worker`
//! - [`console`]: results on stdout, everything else on stderr
//! - [`failure`]: errors with exit codes; [`panics`]: panics as errors
//! - [`text`]: durations, sizes, rates and counts in messages
//!
//! This crate does not depend on tensors, MPI or the training engine. It starts `lambert-worker` processes, which talk
//! to the coordinator over HTTP.

#![allow(missing_docs, reason = "not a library: where a name says it all, no comment repeats it")]

pub mod child_groups;
pub mod cli;
pub mod commands;
pub mod console;
pub mod data_report;
pub mod decide;
pub mod failure;
pub mod host;
pub mod http;
pub mod import;
pub mod init;
pub mod logs;
pub mod metrics;
pub mod observe;
pub mod panics;
pub mod report;
pub mod run;
pub mod slurm;
pub mod status;
pub mod store_writer;
pub mod stored_config;
pub mod tensorboard;
pub mod text;
pub mod tune;
pub mod watch;
pub mod worker;
