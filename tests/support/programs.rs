//! Runs the two programs to their end.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::TestDir;

/// Path of `lambert`, which is in the folder of the worker that this test run built.
pub fn lambert() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_lambert-worker")).with_file_name("lambert");
    assert!(program.exists(), "{} is missing: `cargo build --release --workspace` first", program.display());
    program
}

/// Folder of a tool that tests/setup.sh fetches. It is the value of `variable` or, by default, `name` in the cache. If
/// the folder does not exist, prints SKIPPED and returns `None`.
pub fn cache(variable: &str, name: &str) -> Option<String> {
    let fetched = || {
        let variable = |name: &str| std::env::var(name).ok();
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")? + "/.cache"))?;
        Some(format!("{cache}/lambert/{name}")).filter(|folder| Path::new(folder).exists())
    };
    let found = std::env::var(variable).ok().or_else(fetched);
    if found.is_none() {
        eprintln!("SKIPPED: there is no {name}; tests/setup.sh fetches it");
    }
    found
}

/// Returns environment variables that replace the installed Open MPI by version 5. LAMBERT_TEST_OPENMPI5 names its
/// folder. By default it is the folder that tests/setup.sh has fetched.
pub fn open_mpi_5() -> Option<[(&'static str, String); 2]> {
    let folder = cache("LAMBERT_TEST_OPENMPI5", "openmpi-5.0.11")?;
    let path = format!("{folder}/bin:{}", std::env::var("PATH").unwrap());
    Some([("PATH", path), ("LD_LIBRARY_PATH", format!("{folder}/lib"))])
}

/// Result of a command.
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

thread_local! {
    /// Additional environment variables for all programs that the current test starts, for example those of its S3
    /// server.
    pub static ENVIRONMENT: RefCell<Vec<(&'static str, String)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the command `lambert` with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(lambert());
    command.args(arguments).envs(ENVIRONMENT.with_borrow(Vec::clone));
    command
}

/// Runs `lambert` to its end.
pub fn run(arguments: &[&str]) -> CommandOutput {
    run_in(arguments, &[])
}

/// Like [`run`], with these environment variables.
pub fn run_in(arguments: &[&str], environment: &[(&'static str, String)]) -> CommandOutput {
    let variables = environment.iter().map(|(name, value)| (name, value));
    let Output { status, stdout, stderr } = command(arguments).envs(variables).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// Like [`run`], for a command that must succeed. Returns its standard output.
pub fn done(arguments: &[&str]) -> String {
    let ran = run(arguments);
    assert_eq!(ran.code, 0, "lambert {}: {}", arguments.join(" "), ran.err);
    ran.out
}

/// Installs a copy of `lambert` whose worker is a script. In the script, `$WORKER` is the real worker, which also answers
/// `--version`. Returns the path of the copy.
pub fn with_worker(dir: &TestDir, script: &str) -> PathBuf {
    with_program(dir, &format!("[ \"$1\" = --version ] && exec $WORKER --version\n{script}"))
}

/// Like [`with_worker`], but the script also answers `--version`.
pub fn with_program(dir: &TestDir, script: &str) -> PathBuf {
    let text = format!("#!/bin/sh\nWORKER={}\n{script}\n", env!("CARGO_BIN_EXE_lambert-worker"));
    install(Path::new(&dir.file("worker.sh", text)), &dir.path("programs/lambert-worker"));
    install(&lambert(), &dir.path("programs/lambert"))
}

/// Copies a program in a separate process. If this process copied the file, a child process of another test could
/// inherit the open file. The kernel does not execute a file that is open for writing.
pub fn install(from: &Path, to: &str) -> PathBuf {
    assert!(Command::new("install").args(["-D", "-m", "755"]).arg(from).arg(to).status().unwrap().success());
    to.into()
}
