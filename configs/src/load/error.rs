//! Configuration errors.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

/// Maximum number of issues that are listed.
pub(super) const MAX_ISSUES: usize = 100;

/// One problem in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Key, for example `stage.0.steps`. Empty for the whole file.
    pub key: String,
    /// Value of the key, if the value is the problem.
    pub value: Option<String>,
    /// Problem and expectation.
    pub message: String,
}

impl ConfigIssue {
    /// Creates an issue of `key`.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, message: message.into() }
    }

    /// Creates an issue of the value of `key`.
    pub fn of_value(key: impl Into<String>, value: impl Display, message: impl Into<String>) -> Self {
        Self { value: Some(value.to_string()), ..Self::new(key, message) }
    }
}

impl Display for ConfigIssue {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match (self.key.as_str(), &self.value) {
            ("", _) => f.write_str(&self.message),
            (key, None) => write!(f, "{key}: {}", self.message),
            (key, Some(value)) => write!(f, "{key} = {value}: {}", self.message),
        }
    }
}

/// Kind of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigKind {
    /// A run.
    Run,
    /// A preparation of datasets.
    Prep,
}

impl ConfigKind {
    /// Returns the kind of a file by the list that only this kind has and needs. `None` if the file has none or both.
    pub fn of(file: &toml::Table) -> Option<Self> {
        match (file.contains_key("stage"), file.contains_key("source")) {
            (true, false) => Some(Self::Run),
            (false, true) => Some(Self::Prep),
            _ => None,
        }
    }
}

impl Display for ConfigKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Run => "a configuration of a run (`lambert run`, with [[stage]])",
            Self::Prep => "a configuration of a preparation (`lambert prep`, with [[source]])",
        })
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
    /// The file is a configuration of another kind.
    #[error("{origin} is {found}, not {expected}")]
    OtherKind {
        /// File, or the origin of the text.
        origin: String,
        /// Kind of the file.
        found: ConfigKind,
        /// Kind that the command reads.
        expected: ConfigKind,
    },
    /// The layers cannot be merged.
    #[error("cannot merge {origin} with the environment and --set")]
    Merge {
        /// File, or the origin of the text.
        origin: String,
        /// Cause.
        source: Box<config::ConfigError>,
    },
    /// Invalid values. The message lists at most the first 100.
    #[error("{origin} has {}:{}", count(issues.len()), list(issues))]
    Invalid {
        /// File, or the origin of the text.
        origin: String,
        /// Issues, in the order in which they were found; at most 101.
        issues: Vec<ConfigIssue>,
    },
}

fn count(issues: usize) -> String {
    match issues {
        1 => "1 error".to_owned(),
        2..=MAX_ISSUES => format!("{issues} errors"),
        _ => format!("more than {MAX_ISSUES} errors; the first {MAX_ISSUES}"),
    }
}

fn list(issues: &[ConfigIssue]) -> String {
    issues.iter().take(MAX_ISSUES).map(|issue| format!("\n  {issue}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Layers, PrepConfig, RunConfig};

    #[test]
    fn a_file_of_the_other_kind_is_one_error() {
        let layers = Layers::from_sets(&[]);
        let message = layers.parse::<RunConfig>("[[source]]\n[output]\n", "prep.toml").unwrap_err().to_string();
        assert!(message.starts_with("prep.toml is a configuration of a preparation (`lambert prep`"), "{message}");
        let message = layers.parse::<PrepConfig>("[[stage]]\n[model]\n", "run.toml").unwrap_err().to_string();
        assert!(message.starts_with("run.toml is a configuration of a run (`lambert run`"), "{message}");
        for text in ["", "[[stage]]\n[[source]]\n"] {
            let message = layers.parse::<RunConfig>(text, "run.toml").unwrap_err().to_string();
            assert!(message.contains("run.toml has ") && message.contains("stage"), "{message}");
        }
    }

    /// Every issue of an unknown key needs a pass over all values, so that a list of all of them would take minutes.
    #[test]
    fn many_errors_are_not_all_listed() {
        let unknown = |count: usize| -> String { (0..count).map(|key| format!("k{key} = 1\n")).collect() };
        let message = |text: &str| Layers::from_sets(&[]).parse::<RunConfig>(text, "run.toml").unwrap_err().to_string();
        let many = message(&unknown(20_000));
        assert!(many.starts_with("run.toml has more than 100 errors; the first 100:\n  k"), "{many}");
        assert_eq!(many.lines().count(), 101);
        // One more: there is no stage.
        let few = message(&unknown(99));
        assert!(few.starts_with("run.toml has 100 errors:\n") && few.lines().count() == 101, "{few}");
        let invalid = message(&"[[stage]]\n".repeat(101));
        assert!(invalid.starts_with("run.toml has more than 100 errors"), "{invalid}");
    }
}
