//! Locates `lambert-worker` and runs the commands that `lambert-worker` implements.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use lambert_config::exit;
use lambert_config::run::Device;
use lambert_progress::terminal::{LOG_FORMAT, is_quiet, shows_bars};

use crate::console::{self, QUIET_FILTER};
use crate::failure::{Failure, Outcome};

const NAME: &str = "lambert-worker";

/// Repair of a worker whose libraries do not load.
const LIBRARY_ADVICE: &str = "make its libraries available on this host: libtorch in lib/ beside the folder of the program \
                              or in a folder of LD_LIBRARY_PATH, Open MPI as installed by the system";

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
    /// The program does not print its version. Usually one of its libraries is missing.
    #[error("{} does not start: {message}; {LIBRARY_ADVICE}", program.display())]
    Version {
        /// Path of the program.
        program: PathBuf,
        /// Its standard error, or its exit status if it printed nothing.
        message: String,
    },
    /// The compute device, or one of its libraries, cannot be used.
    #[error("device: {message}")]
    Device {
        /// Last message of the program.
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
/// The program cannot be started, or it fails. The set-up of this host is then wrong.
pub fn version(program: &Path) -> Result<String, WorkerError> {
    let start_error = |source| WorkerError::Start { program: program.to_owned(), source };
    let output = Command::new(program).arg("--version").output().map_err(start_error)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let printed = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let message = if printed.is_empty() { output.status.to_string() } else { printed };
    Err(WorkerError::Version { program: program.to_owned(), message })
}

/// Loads the libraries of the compute device of a rank in `program`. Returns a description of the device.
///
/// # Errors
/// The program cannot be started, or the device cannot be used.
pub fn device(program: &Path, device: &Device, uses_nccl: bool) -> Result<String, WorkerError> {
    let start_error = |source| WorkerError::Start { program: program.to_owned(), source };
    let mut command = Command::new(program);
    command.args(["device", "--kind", device.kind.name(), "--libtorch", &device.libtorch]);
    command.args(uses_nccl.then_some("--nccl")).env("RUST_LOG", QUIET_FILTER);
    let output = command.output().map_err(start_error)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    let last = printed.trim_end().lines().last().unwrap_or("no message");
    // A log line begins with its time and level.
    let message = last.split_once("ERROR ").map_or(last, |(_, message)| message).trim().to_owned();
    Err(WorkerError::Device { message })
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
    if console::is_json() {
        command.env(LOG_FORMAT, "json");
    }
    command
}
