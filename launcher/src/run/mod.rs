//! `lambert run`: the coordinator, which starts the workers of a run, watches them and starts them again.
//!
//! - [`order`]: what was asked for, checked against the run that is there ([`difference`]) and against the checkpoint that
//!   a new one begins with ([`origin`])
//! - [`stored`]: the configuration in the run's store
//! - [`beginning`]: what the run's store holds when a coordinator begins
//! - [`coordinator`]: hands events to [`crate::decide`], a pure function, and carries out what it wants done; [`clock`]: its time
//! - [`sources`] of events: signals, the run's store, the lease; [`job_view`]: its Slurm job; [`control`]: the HTTP server that the ranks report to
//! - [`launch`]: the processes of an attempt, started directly, by mpirun or by srun, ended to the last
//! - [`forecast`]: what a run will do and need, said before it starts; [`data_warnings`]: what is doubtful about its data
//!
//! [`crate::observe`] watches it: the status in the store, the log and the display, the lines of `--json`.

pub mod beginning;
pub mod clock;
pub mod control;
pub mod coordinator;
pub mod data_warnings;
pub mod difference;
pub mod forecast;
pub mod job_view;
pub mod launch;
pub mod order;
pub mod origin;
pub mod sources;
pub mod stored;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::observe::Records;
use launch::workers::WorkersError;
use order::Order;

/// Starts or resumes the run, and returns when it is done, stopped or given up.
pub fn run(arguments: &cli::Run) -> Outcome {
    console::detach().map_err(Failure::failed)?;
    std::env::current_dir().map_err(|error| Failure::usage(WorkersError::NoFolder(error)))?;
    let proposed = Order::propose(arguments, coordinator::room)?;
    let launcher = launch::choose(&proposed.config().cluster).map_err(Failure::failed)?;
    tracing::debug!("ranks are started by {}", launcher.name());
    forecast::lines(proposed.config())?.iter().for_each(|line| console::line(line));
    data_warnings::find(proposed.config())?.iter().for_each(|warning| tracing::warn!("{warning}"));
    // Only now: ranks of a coordinator at work read the run's configuration whenever they are started again.
    let order = proposed.settle()?;
    let records = if arguments.json { Records::Printed } else { Records::Shown };
    coordinator::run(&order, &*launcher, records)
}
