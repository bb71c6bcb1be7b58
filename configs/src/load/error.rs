//! Configuration errors.

use std::path::PathBuf;

/// One problem in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Key, for example `stage.0.steps`. Empty for the whole file.
    pub key: String,
    /// Problem and expectation.
    pub message: String,
}

impl ConfigIssue {
    /// Creates an issue of `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl std::fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.key, self.message) }
    }
}

/// Error of loading a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{origin} is not TOML:\n{message}")]
    Syntax {
        /// File, or the origin of the text.
        origin: String,
        /// Line, column and what was expected.
        message: String,
    },
    /// The layers cannot be merged.
    #[error("cannot merge {origin} with the environment and --set")]
    Merge {
        /// File, or the origin of the text.
        origin: String,
        /// Cause.
        source: Box<config::ConfigError>,
    },
    /// Invalid values, all listed.
    #[error("{origin} has {} error{}:{}", issues.len(), if issues.len() == 1 { "" } else { "s" }, list(issues))]
    Invalid {
        /// File, or the origin of the text.
        origin: String,
        /// All issues, in the order in which they were found.
        issues: Vec<ConfigIssue>,
    },
}

fn list(issues: &[ConfigIssue]) -> String {
    issues.iter().map(|issue| format!("\n  {issue}")).collect()
}
