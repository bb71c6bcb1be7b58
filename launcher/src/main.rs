//! The `lambert` program: parses the command line, runs the command and prints its error.

use std::process::ExitCode;

use clap::Parser;
use lambert::{cli::Cli, commands, console, panics};
use lambert_progress::signals;

fn main() -> ExitCode {
    let cli = Cli::parse();
    console::begin(cli.log, cli.quiet);
    signals::wait_for_children();
    let code = panics::guard(|| commands::run(&cli.command)).unwrap_or_else(|failure| {
        console::error(&format!("lambert: error: {failure}"));
        failure.code
    });
    console::finish();
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
