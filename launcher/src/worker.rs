//! Locates `lambert-worker` and runs the commands that `lambert-worker` implements.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use lambert_config::exit;
use lambert_progress::terminal::{is_quiet, shows_bars};

use crate::console::QUIET_FILTER;
use crate::failure::{Failure, Outcome};

const NAME: &str = "lambert-worker";

/// `lambert-worker` cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The program was not found.
    #[error("cannot find {NAME} in {} or in PATH ({path}); install it beside lambert", beside.display())]
    Missing {
        /// Directory of this program.
        beside: PathBuf,
        /// Value of PATH.
        path: String,
    },
    /// The program starts, but does not print its version.
    #[error("{} --version failed: {message}", program.display())]
    Version {
        /// Path of the program.
        program: PathBuf,
        /// Its standard error.
        message: String,
    },
    /// The program cannot be executed.
    #[error("cannot start {}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// System error.
        source: io::Error,
    },
}

/// Finds `lambert-worker` next to this program, else in PATH.
pub fn find() -> Result<PathBuf, WorkerError> {
    let own = std::env::current_exe().ok().and_then(|program| program.canonicalize().ok());
    let beside = own.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    let found = Some(beside.join(NAME)).filter(|program| is_program(program)).or_else(|| find_program(NAME));
    let path = || std::env::var_os("PATH").unwrap_or_default().to_string_lossy().into_owned();
    found.ok_or_else(|| WorkerError::Missing { path: path(), beside })
}

/// Finds a program as a shell does: in PATH, or at its path if the name has a slash.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        if name.contains('/') { vec![PathBuf::new()] } else { std::env::split_paths(&path).collect() };
    folders.into_iter().map(|folder| folder.join(name)).find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Runs `program --version` and returns its output, to see that the program and its libraries load.
///
/// # Errors
/// The program cannot be started, or it fails.
pub fn version(program: &Path) -> Result<String, WorkerError> {
    let start_error = |source| WorkerError::Start { program: program.to_owned(), source };
    let output = Command::new(program).arg("--version").output().map_err(start_error)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(WorkerError::Version { program: program.to_owned(), message })
}

/// Replaces this process with the worker (`exec`), which shows its progress on a terminal. Returns only on failure.
pub fn become_worker(arguments: &[String]) -> Outcome {
    let program = find().map_err(Failure::failed)?;
    let source = command(&program, arguments).exec();
    Err(Failure::failed(WorkerError::Start { program, source }))
}

/// Returns the exit code of the worker, which `run` runs.
pub fn run_worker(arguments: &[String], run: impl FnOnce(Command) -> io::Result<ExitStatus>) -> Outcome {
    let program = find().map_err(Failure::failed)?;
    match run(command(&program, arguments)) {
        Ok(status) => Ok(status.code().unwrap_or(exit::FAILED)),
        Err(source) => Err(Failure::failed(WorkerError::Start { program, source })),
    }
}

fn command(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(shows_bars().then_some("--progress")).args(arguments);
    if is_quiet() {
        command.env("RUST_LOG", QUIET_FILTER);
    }
    command
}
