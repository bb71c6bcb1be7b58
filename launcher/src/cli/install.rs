//! Commands for the installation: completions, man.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::local_path;

const COMPLETIONS_EXAMPLES: &str = "Examples:
  lambert completions bash > ~/.local/share/bash-completion/completions/lambert
  lambert completions fish > ~/.config/fish/completions/lambert.fish";

/// Arguments of `lambert completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct Completions {
    /// Shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU Bash 4 or newer.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
}

/// Arguments of `lambert man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lambert man --output ~/.local/share/man/man1")]
pub struct Man {
    /// Folder for the pages
    #[arg(long, value_name = "DIR", value_parser = local_path())]
    pub output: PathBuf,
}
