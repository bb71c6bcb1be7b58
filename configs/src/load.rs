//! Layered configuration: a TOML file, then `LAMBERT__A__B=value` from the environment, then `--set a.b=value`.
//!
//! Elements of a list are named by their number from 0: `stage.0.steps`, or `stage[0].steps`. The crate `config` merges the layers
//! (layers.rs). A fault never hides another: a value that cannot be read is noted, taken out and the rest is read on, so that one report lists everything.

mod layers;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// A configuration type that can say what is wrong with its values.
pub trait Checked: DeserializeOwned {
    /// Adds one fault for each value that cannot be meant; the keys are written as in the file.
    fn check(&self, faults: &mut Vec<Fault>);
}

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

/// The layers above the file.
#[derive(Debug, Default, Clone)]
pub struct Layers {
    environment: Vec<(String, String)>,
    /// Variables of ours whose values are not UTF-8.
    unreadable: Vec<String>,
    sets: Vec<String>,
}

impl Layers {
    /// This process's `LAMBERT__*` variables, then `sets` (`key=value` each).
    pub fn from_process(sets: &[String]) -> Self {
        let (mut environment, mut unreadable) = (Vec::new(), Vec::new());
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let Some(key) = name.strip_prefix("LAMBERT__") else { continue };
            match value.into_string() {
                Ok(value) => environment.push((key.to_lowercase().replace("__", "."), value)),
                Err(_) => unreadable.push(name.into_owned()),
            }
        }
        environment.sort();
        unreadable.sort();
        Self { environment, unreadable, sets: sets.to_vec() }
    }

    /// Only `sets`, whatever the environment holds.
    pub fn from_sets(sets: &[String]) -> Self {
        Self { sets: sets.to_vec(), ..Self::default() }
    }

    /// Reads `path`, lays the other layers over it and checks the result.
    pub fn load<T: Checked>(&self, path: &Path) -> Result<T, ConfigError> {
        self.load_with(path, |_, _| {})
    }

    /// The same with checks of the caller's, whose faults are listed beside the others: what is wrong with the things
    /// that the configuration names.
    pub fn load_with<T: Checked>(&self, path: &Path, more: impl FnOnce(&T, &mut Vec<Fault>)) -> Result<T, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        self.parse_with(&text, &path.display().to_string(), more)
    }

    /// [`Layers::load`] for text that was read already; `origin` names it in errors.
    pub fn parse<T: Checked>(&self, text: &str, origin: &str) -> Result<T, ConfigError> {
        self.parse_with(text, origin, |_, _| {})
    }

    /// [`Layers::load_with`] for text that was read already; `origin` names it in errors.
    pub fn parse_with<T: Checked>(
        &self,
        text: &str,
        origin: &str,
        more: impl FnOnce(&T, &mut Vec<Fault>),
    ) -> Result<T, ConfigError> {
        let table: Table = toml::from_str(text).map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: origin.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        let mut faults = Vec::new();
        let not_utf_8 = |name| Fault::new("", format!("{name}: the value is not UTF-8"));
        faults.extend(self.unreadable.iter().map(not_utf_8));
        let mut sets = Vec::new();
        for set in &self.sets {
            match set.split_once('=') {
                Some((key, value)) => sets.push((key.trim().to_owned(), value.trim().to_owned())),
                None => faults.push(Fault::new("", format!("--set {set}: expected key=value"))),
            }
        }
        let merged = layers::merge(table, &self.environment, &sets, &mut faults);
        let tree =
            merged.map_err(|source| ConfigError::Merge { origin: origin.to_owned(), source: Box::new(source) })?;
        let parsed: Option<T> = read_all(tree, &mut faults);
        if let Some(config) = &parsed {
            let unread: Vec<String> = faults.iter().map(|fault| fault.key.clone()).collect();
            let mut wrong = Vec::new();
            config.check(&mut wrong);
            more(config, &mut wrong);
            // A value that could not be read stands at its default now; what the default breaks is no second fault.
            faults.extend(wrong.into_iter().filter(|fault| !unread.contains(&fault.key)));
        }
        match parsed {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(ConfigError::Faults { origin: origin.to_owned(), faults }),
        }
    }
}

/// Takes out what stands at `path`; `false` if nothing does.
fn remove(node: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    match node {
        Value::Table(table) if rest.is_empty() => table.remove(first).is_some(),
        Value::Table(table) => {
            let Some(child) = table.get_mut(first) else { return false };
            let plain = child.as_array().is_some_and(|items| !items.iter().any(Value::is_table));
            if plain {
                // A list of values goes as a whole: there is nothing that could stand in the place of one.
                table.remove(first);
                return true;
            }
            remove(child, rest)
        }
        Value::Array(items) => match first.parse::<usize>() {
            Ok(index) if index < items.len() && !rest.is_empty() => remove(&mut items[index], rest),
            // An element is emptied, not taken out, so that the numbers of the others stay.
            Ok(index) if index < items.len() && items[index] != Value::Table(Table::new()) => {
                items[index] = Value::Table(Table::new());
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Reads `tree` as `T`; each value that cannot be read becomes a fault and is left at its default.
fn read_all<T: DeserializeOwned>(mut tree: Value, faults: &mut Vec<Fault>) -> Option<T> {
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(tree.clone()) {
            Ok(config) => return Some(config),
            Err(error) => error,
        };
        let message = error.inner().message().trim_end().to_owned();
        let mut path: Vec<String> = error
            .path()
            .iter()
            .map(|segment| match segment {
                serde_path_to_error::Segment::Seq { index } => index.to_string(),
                other => other.to_string(),
            })
            .filter(|part| part != "?")
            .collect();
        if let Some(field) = unknown_field(&message)
            && path.last() != Some(&field)
        {
            path.push(field);
        }
        faults.push(Fault::new(path.join("."), message));
        if !remove(&mut tree, &path) {
            return None;
        }
    }
}

fn unknown_field(message: &str) -> Option<String> {
    Some(message.strip_prefix("unknown field `")?.split('`').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Default, Debug)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        number: u32,
        inner: Inner,
        list: Vec<Inner>,
        words: Vec<String>,
        pairs: Vec<[u64; 2]>,
    }

    #[derive(Deserialize, Default, Debug)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        text: String,
        share: f64,
    }

    impl Checked for Outer {
        fn check(&self, faults: &mut Vec<Fault>) {
            if self.number == 0 {
                faults.push(Fault::new("number", "must be at least 1"));
            }
        }
    }

    fn parse(text: &str, sets: &[&str]) -> Result<Outer, ConfigError> {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        Layers::from_sets(&sets).parse(text, "test.toml")
    }

    fn keys(error: ConfigError) -> Vec<String> {
        match error {
            ConfigError::Faults { faults, .. } => faults.into_iter().map(|fault| fault.key).collect(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn sets_reach_sections_and_list_elements() {
        let config =
            parse("number = 1\n[[list]]\n[[list]]", &["inner.text=some words", "list.1.share=0.5", "number=7"]);
        let config = config.unwrap();
        assert_eq!((config.number, config.inner.text.as_str(), config.list[1].share), (7, "some words", 0.5));
    }

    #[test]
    fn every_fault_is_listed() {
        let text = "numbr = 3\nnumber = 'x'\n[inner]\ntext = 4\nsize = 1\n[[list]]\nshare = 'much'\nother = 1";
        let mut found = keys(parse(text, &["list.4.share=1", "nonsense"]).unwrap_err());
        found.sort();
        assert_eq!(
            found,
            ["", "inner.size", "inner.text", "list.0.other", "list.0.share", "list.4.share", "number", "numbr"]
        );
    }

    #[test]
    fn a_wrong_element_of_a_list_hides_nothing() {
        for list in ["words = ['a', 4]", "words = [4]", "pairs = [[1, 2], [3, 'x']]"] {
            let found = keys(parse(&format!("{list}\n[inner]\ntext = 4"), &[]).unwrap_err());
            assert!(
                found.len() == 3 && found.contains(&"inner.text".into()) && found.contains(&"number".into()),
                "{list}: {found:?}"
            );
        }
    }

    #[test]
    fn checks_run_beside_reading_faults() {
        assert_eq!(keys(parse("[inner]\nsize = 1", &[]).unwrap_err()), ["inner.size", "number"]);
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let message = parse("number = 1\n[inner\n", &[]).unwrap_err().to_string();
        assert!(message.contains("test.toml") && message.contains("line 2"), "{message}");
    }
}
