//! Errors of a configuration.

use std::path::PathBuf;

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where, as `stage.0.steps`; empty for the whole file.
    pub key: String,
    /// What was found and what was expected.
    pub message: String,
}

impl Fault {
    /// A fault at `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.key.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.key, self.message) }
    }
}

/// Why a configuration could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{origin} is not TOML:\n{message}")]
    Syntax {
        /// The file, or what stood in its place.
        origin: String,
        /// Line, column and what was expected.
        message: String,
    },
    /// The layers cannot be merged.
    #[error("cannot merge {origin} with the environment and --set")]
    Merge {
        /// The file, or what stood in its place.
        origin: String,
        /// Why.
        source: Box<config::ConfigError>,
    },
    /// Values are wrong; all of them are listed.
    #[error("{origin} has {} fault{}:{}", faults.len(), if faults.len() == 1 { "" } else { "s" }, list(faults))]
    Faults {
        /// The file, or what stood in its place.
        origin: String,
        /// Every fault, in the order of the keys.
        faults: Vec<Fault>,
    },
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}
