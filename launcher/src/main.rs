//! The `lambert` program: parses the command line, runs the command and prints its error.

use std::process::ExitCode;

use clap::Parser;
use lambert::cli::{Cli, LogFormat};
use lambert::{commands, console, panics};
use lambert_config::exit;
use lambert_progress::signals;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && LogFormat::of_invalid(arguments()) == LogFormat::Json => {
            console::begin(LogFormat::Json, false);
            return end(exit::USAGE, Some(error.to_string().trim_start_matches("error: ").trim_end()));
        }
        Err(error) => error.exit(),
    };
    console::begin(cli.log, cli.quiet);
    signals::wait_for_children();
    match panics::guard(|| commands::run(&cli.command)) {
        Ok(code) => end(code, None),
        Err(failure) => end(failure.code, Some(&failure.to_string())),
    }
}

/// Arguments of the command line, the program first. Invalid Unicode is replaced.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())
}

/// Prints the error, if any, and waits until it is written. Returns the exit code.
fn end(code: i32, error: Option<&str>) -> ExitCode {
    error.iter().for_each(|error| console::final_error(error, code));
    console::finish();
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
