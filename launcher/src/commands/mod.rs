//! Subcommands, each from its arguments to an exit code.

mod checkpoint;
mod export;
mod files;
mod generate;
mod inspect;
mod metrics;
mod plan;
mod prep;
mod status;
mod status_lines;
mod stop;
mod submit;
mod submit_prep;
mod trim;
mod vocab;
mod watch;

use crate::cli::Command;
use crate::failure::Outcome;
use crate::{run, tune, worker};

/// Runs a subcommand.
pub fn run(command: &Command) -> Outcome {
    match command {
        Command::Prep(arguments) => prep::prep(arguments),
        Command::Vocab(arguments) => vocab::vocab(arguments),
        Command::Generate(arguments) => generate::generate(arguments),
        Command::Inspect(arguments) => inspect::inspect(arguments),
        Command::Plan(arguments) => plan::plan(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Submit(arguments) => submit::submit(arguments),
        Command::Tune(arguments) => tune::tune(arguments),
        Command::Status(arguments) => status::status(arguments),
        Command::Watch(arguments) => watch::watch(arguments),
        Command::Metrics(arguments) => metrics::metrics(arguments),
        Command::Stop(arguments) => stop::stop(arguments),
        Command::Eval(arguments) => worker::become_worker(&arguments.to_worker()),
        Command::FillMask(arguments) => worker::become_worker(&arguments.to_worker()),
        Command::Checkpoint(arguments) => checkpoint::checkpoint(&arguments.action),
        Command::Export(arguments) => export::export(arguments),
    }
}
