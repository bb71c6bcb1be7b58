//! Command failures: an error with its causes and an exit code.

use std::error::Error;
use std::fmt;

use lambert_config::{ConfigError, exit};
use lambert_data_prep::inspect::InspectError;
use lambert_dataset::DatasetError;
pub use lambert_store::error::chain;

/// Result of a command: an exit code or a failure.
pub type Outcome = Result<i32, Failure>;

/// An error with an exit code, printed once by `main`.
#[derive(Debug)]
pub struct Failure {
    /// Process exit code.
    pub code: i32,
    error: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// Invalid command line or configuration.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code: exit::USAGE, error: error.into() }
    }

    /// An error with a specific exit code.
    pub fn coded(code: i32, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code, error: error.into() }
    }

    /// A failure at run time.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { code: exit::FAILED, error: error.into() }
    }
}

/// Formats the error and its causes, separated by colons.
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

/// A store error is a failure at run time, not a usage error: the store may be reachable on the next start.
impl From<DatasetError> for Failure {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::Store { .. } => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

/// A dataset that does not exist is a usage error, as in the other commands. Any other error is a finding.
impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Dataset(DatasetError::NoManifest { .. }) => Self::usage(error),
            _ => Self::failed(error),
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
