//! `lambert completions`: prints the completions of a shell.

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use lambert_config::exit;

use crate::cli::{self, Cli};
use crate::console;
use crate::failure::{Failure, Outcome};

/// Prints the script.
pub fn completions(arguments: &cli::Completions) -> Outcome {
    let shell = match arguments.shell {
        cli::Shell::Bash => Shell::Bash,
        cli::Shell::Zsh => Shell::Zsh,
        cli::Shell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "lambert", &mut script);
    console::result(String::from_utf8_lossy(&script).trim_end()).map_err(Failure::failed)?;
    Ok(exit::DONE)
}
