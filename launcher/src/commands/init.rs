//! `lambert init`: writes the configuration files of a first run.

use std::io::Write;
use std::path::{Path, PathBuf};

use lambert_config::exit;
use lambert_progress::Progress;

use super::files;
use crate::failure::{Failure, Outcome};
use crate::{cli, console, init};

#[derive(Debug, thiserror::Error)]
#[error("files exist already: {0}; use --force to replace them, or --output DIR to write to another folder")]
struct Existing(String);

/// Writes the files and prints the next commands.
pub fn init(arguments: &cli::Init) -> Outcome {
    let progress = Progress::start("searching the text");
    let built = init::build(arguments).map_err(Failure::usage)?;
    drop(progress);
    let path = |name: &str| if arguments.output == Path::new(".") { name.into() } else { arguments.output.join(name) };
    let paths: Vec<PathBuf> = built.files.iter().map(|(name, _)| path(name)).collect();
    let existing: Vec<&PathBuf> = paths.iter().filter(|path| path.symlink_metadata().is_ok()).collect();
    if !arguments.force && !existing.is_empty() {
        return Err(Failure::usage(Existing(listed(&existing))));
    }
    for (path, (_, text)) in paths.iter().zip(&built.files) {
        files::write(path, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    }
    let steps: String = built.steps.iter().map(|step| format!("  {step}\n")).collect();
    let written = listed(&paths.iter().collect::<Vec<_>>());
    console::result(&format!("wrote {written}\n\nNext:\n{}", steps.trim_end())).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

fn listed(paths: &[&PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
