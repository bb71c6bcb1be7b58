//! How a command ends that did not succeed: one error with its causes, and an exit code.

use std::error::Error;
use std::fmt;

use lambert_config::{ConfigError, exit};
use lambert_dataset::DatasetError;
pub use lambert_store::error::chain;

/// What a command gives back: an exit code, or the failure that decides it.
pub type Outcome = Result<i32, Failure>;

/// An error on its way to the one place that prints it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: i32,
    error: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// The command line or the configuration is wrong.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code: exit::USAGE, error: error.into() }
    }

    /// Something that has an exit code of its own.
    pub fn coded(code: i32, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code, error: error.into() }
    }

    /// Something went wrong on the way.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code: exit::FAILED, error: error.into() }
    }
}

/// The error and, after a colon each, what caused it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(&*self.error))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error)
    }
}

/// A store that is away may be back at the next start.
impl From<DatasetError> for Failure {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::Store { .. } => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read run.toml")]
        struct Outer(#[source] std::io::Error);
        let failure = Failure::failed(Outer(std::io::Error::other("the disk is gone")));
        assert_eq!(failure.to_string(), "cannot read run.toml: the disk is gone");
        assert_eq!(failure.code, exit::FAILED);
    }
}
