//! `lambert run`: the coordinator, which starts the workers of a run, watches them and starts them again.
//!
//! - [`order`]: what was asked for, checked against the run that is there ([`difference`]) and against the checkpoint that
//!   a new one begins with ([`origin`])
//! - [`coordinator`]: attempts, one after the other; [`decision`] says what follows one, as a pure function
//! - [`workers`]: the processes of an attempt, by [`mpirun`] or directly, ended to the last ([`processes`]); [`session`]
//!   is where Open MPI keeps its files
//! - [`control`]: the HTTP server that the ranks report to
//! - [`watch`]: what is known of an attempt, and why it failed
//! - [`requests`]: signals, stop requests, a lease that is lost
//! - [`forecast`]: what a run will do and need, said before it starts; [`progress`]: what a person sees then

pub mod control;
pub mod coordinator;
pub mod decision;
pub mod difference;
pub mod forecast;
pub mod mpirun;
pub mod order;
pub mod origin;
pub mod processes;
pub mod progress;
pub mod requests;
pub mod session;
pub mod watch;
pub mod workers;

use crate::cli;
use crate::console;
use crate::failure::Outcome;
use coordinator::{Coordinator, Records};
use order::Order;

/// Starts or resumes the run, and returns when it is done, stopped or given up.
pub fn run(arguments: &cli::Run) -> Outcome {
    let order = Order::place(arguments)?;
    forecast::lines(&order.config)?.iter().for_each(|line| console::line(line));
    let records = if arguments.json { Records::Printed } else { Records::Shown };
    Coordinator::new(&order, records)?.run()
}
