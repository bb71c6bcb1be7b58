//! Runs Slurm's command-line programs.

use std::process::Command;

/// A Slurm program failed.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// The program cannot be started.
    #[error("cannot start {program}; check that Slurm is installed on this machine")]
    Absent {
        program: &'static str,
        /// System error.
        source: std::io::Error,
    },
    /// The program returned an error.
    #[error("{program} failed: {stderr}")]
    Refused {
        program: &'static str,
        /// Output of the program on stderr.
        stderr: String,
    },
}

/// Runs a Slurm program and returns its stdout.
pub fn query(program: &'static str, arguments: &[&str]) -> Result<String, SlurmError> {
    let output =
        Command::new(program).args(arguments).output().map_err(|source| SlurmError::Absent { program, source })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(SlurmError::Refused { program, stderr: text(&output.stderr) }),
    }
}

/// Decodes and trims output.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
