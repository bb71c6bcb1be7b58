//! Slurm's own programs, run to their end.

use std::process::Command;

/// Why Slurm gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no Slurm, as far as this machine knows.
    #[error("cannot start {program}: is Slurm on this machine?")]
    Absent {
        /// The program that was looked for.
        program: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A program of Slurm's has failed.
    #[error("{program} says: {says}")]
    Refused {
        /// The program.
        program: &'static str,
        /// Its message.
        says: String,
    },
}

/// What a program of Slurm's prints.
pub fn ask(program: &'static str, arguments: &[&str]) -> Result<String, AskError> {
    let output =
        Command::new(program).args(arguments).output().map_err(|source| AskError::Absent { program, source })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(AskError::Refused { program, says: text(&output.stderr) }),
    }
}

/// Output without the white space around it.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
