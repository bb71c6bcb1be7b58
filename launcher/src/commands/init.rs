//! `lambert init`: writes the configuration files of a first run.

use std::io::Write;
use std::path::PathBuf;

use lambert_config::exit;

use super::files;
use crate::failure::{Failure, Outcome};
use crate::{cli, console, init};

#[derive(Debug, thiserror::Error)]
#[error("{} already exists; --force replaces it, --output DIR writes to another directory", .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
struct Existing(Vec<PathBuf>);

/// Writes the files and prints the next commands.
pub fn init(arguments: &cli::Init) -> Outcome {
    let built = init::build(arguments).map_err(Failure::usage)?;
    let paths = || built.files.iter().map(|(name, _)| arguments.output.join(name));
    let existing: Vec<PathBuf> = paths().filter(|path| path.symlink_metadata().is_ok()).collect();
    if !arguments.force && !existing.is_empty() {
        return Err(Failure::usage(Existing(existing)));
    }
    for (path, (_, text)) in paths().zip(&built.files) {
        files::write(&path, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    }
    let written: Vec<String> = paths().map(|path| path.display().to_string()).collect();
    let steps: String = built.steps.iter().map(|step| format!("  {step}\n")).collect();
    console::result(&format!("wrote {}\n\nNext:\n{}", written.join(", "), steps.trim_end())).map_err(Failure::failed)?;
    Ok(exit::DONE)
}
