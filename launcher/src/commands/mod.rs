//! Subcommands. Each subcommand takes its arguments and returns an exit code or a failure.

mod checkpoint;
mod completions;
mod data_report;
mod eval;
mod export;
mod files;
mod follow;
mod generate;
mod import;
mod init;
mod inspect;
mod logs;
mod man;
mod metrics;
mod plan;
mod prep;
mod report;
mod scratch;
mod status;
mod status_lines;
mod status_list;
mod stop;
mod stored_run;
mod submit;
mod submit_prep;
mod trim;
mod vocab;
mod watch;

use crate::cli::{Command, DataAction};
use crate::failure::Outcome;
use crate::{run, tune, worker};

/// Runs a subcommand.
pub fn run(command: &Command) -> Outcome {
    match command {
        Command::Init(arguments) => init::init(arguments),
        Command::Prep(arguments) => prep::prep(arguments),
        Command::Vocab(arguments) => vocab::vocab(arguments),
        Command::Generate(arguments) => generate::generate(arguments),
        Command::Inspect(arguments) => inspect::inspect(arguments),
        Command::Data(arguments) => match &arguments.action {
            DataAction::Report(arguments) => data_report::data_report(arguments),
        },
        Command::Plan(arguments) => plan::plan(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Submit(arguments) => submit::submit(arguments),
        Command::Tune(arguments) => tune::tune(arguments),
        Command::Status(arguments) => status::status(arguments),
        Command::Logs(arguments) => logs::logs(arguments),
        Command::Watch(arguments) => watch::watch(arguments),
        Command::Metrics(arguments) => metrics::metrics(arguments),
        Command::Report(arguments) => report::report(arguments),
        Command::Stop(arguments) => stop::stop(arguments),
        Command::Eval(arguments) => eval::eval(arguments),
        Command::Embed(arguments) => worker::become_worker(&arguments.to_worker()),
        Command::Score(arguments) => worker::become_worker(&arguments.to_worker()),
        Command::FillMask(arguments) => worker::become_worker(&arguments.to_worker()),
        Command::Checkpoint(arguments) => checkpoint::checkpoint(&arguments.action),
        Command::Export(arguments) => export::export(arguments),
        Command::Import(arguments) => import::import(arguments),
        Command::Completions(arguments) => completions::completions(arguments),
        Command::Man(arguments) => man::man(arguments),
    }
}
