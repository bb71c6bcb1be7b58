//! Layered configuration: TOML files, then `LAMBERT__A__B=value` from the environment, then `--set a.b=value`.
//!
//! A later file overrides the keys of an earlier one. Lists are not merged: a later file replaces the whole list.
//!
//! List elements are named by index, from 0: `stage.0.steps` or `stage[0].steps`.
//!
//! First, old names of keys are replaced by new names in each layer (renames.rs). Then the crate `config` merges the
//! layers (layers.rs). A value that cannot be parsed is recorded as an issue and removed, and parsing continues
//! (strict.rs). One report thus lists all errors.

mod error;
mod layers;
mod renames;
pub(crate) mod strict;

use std::borrow::Cow;
use std::path::PathBuf;

use toml::Table;

use error::MAX_ISSUES;
pub use error::{ConfigError, ConfigIssue, ConfigKind};
use layers::Layer;
use renames::RenamedKey;

/// Configuration type that validates its values.
pub trait Checked: Sized {
    /// Renamed keys, as (old, new). `*` in a path stands for the index of a list element.
    const RENAMED: &'static [(&'static str, &'static str)] = &[];

    /// Kind of the files with this configuration.
    const KIND: Option<ConfigKind> = None;

    /// Inserts defaults that depend on other values into the values of all layers.
    fn insert_defaults(_tree: &mut toml::Value) {}

    /// Deserializes the values of all layers. Adds an issue for each value that cannot be parsed, and uses its default. (Each
    /// type implements this function, so that its deserializer is compiled once, in this crate, and not in every program.)
    fn read(tree: toml::Value, issues: &mut Vec<ConfigIssue>) -> Option<Self>;

    /// Adds one issue per invalid value. Keys are written as in the file.
    fn check(&self, issues: &mut Vec<ConfigIssue>);
}

/// Configuration layers that override the files.
#[derive(Debug, Default, Clone)]
pub struct Layers {
    environment: Vec<(String, String)>,
    /// `LAMBERT__*` variables whose values are not UTF-8.
    unreadable: Vec<String>,
    sets: Vec<String>,
    warn: Option<fn(&str)>,
}

/// Configuration text.
struct Text<'a> {
    text: Cow<'a, str>,
    /// Name of the file in messages.
    origin: Cow<'a, str>,
    /// True if lambert wrote the text.
    is_stored: bool,
}

/// Layer of a file.
struct FileLayer<'a> {
    /// Name of the file in messages.
    origin: &'a str,
    /// Keys as in the file.
    written: Layer,
    /// Keys with their current names.
    renamed: Layer,
}

impl FileLayer<'_> {
    /// True if the file sets the key at `path`.
    fn sets(&self, path: &[String]) -> bool {
        self.written.iter().chain(&self.renamed).any(|assignment| assignment.sets(path))
    }

    /// True if the file sets the key at `path`, or a list or a plain value above it.
    fn determines(&self, path: &[String]) -> bool {
        self.sets(path) || self.renamed.iter().any(|assignment| assignment.replaces(path))
    }
}

impl Layers {
    /// Uses the `LAMBERT__*` variables of this process, then `sets` (each of the form `key=value`).
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
        Self { environment, unreadable, sets: sets.to_vec(), warn: None }
    }

    /// Uses only `sets` and ignores the environment.
    pub fn from_sets(sets: &[String]) -> Self {
        Self { sets: sets.to_vec(), ..Self::default() }
    }

    /// Passes warnings, for example about renamed keys, to `warn`. Without this call there are no warnings.
    #[must_use]
    pub fn warn_with(self, warn: fn(&str)) -> Self {
        Self { warn: Some(warn), ..self }
    }

    /// Merges the files `paths` in order, applies the other layers and validates the result.
    pub fn load<T: Checked>(&self, paths: &[PathBuf]) -> Result<T, ConfigError> {
        self.load_with(paths, |_, _| {})
    }

    /// Like [`Layers::load`], with additional checks by the caller. The issues from these checks are added to the
    /// report.
    pub fn load_with<T: Checked>(
        &self,
        paths: &[PathBuf],
        more: impl FnOnce(&T, &mut Vec<ConfigIssue>),
    ) -> Result<T, ConfigError> {
        let text = |path: &PathBuf| {
            let text =
                std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
            Ok(Text { text: text.into(), origin: path.display().to_string().into(), is_stored: false })
        };
        self.read(&paths.iter().map(text).collect::<Result<Vec<_>, ConfigError>>()?, more)
    }

    /// Returns the name of the configuration in `paths`, for messages.
    pub fn origin(paths: &[PathBuf]) -> String {
        name_of(paths.iter().map(|path| path.display().to_string()).collect())
    }

    /// Like [`Layers::load`], for text that lambert itself wrote. An older version may have written the text, so old
    /// names of keys cause no warnings. `origin` names the text in errors.
    pub fn parse<T: Checked>(&self, text: &str, origin: &str) -> Result<T, ConfigError> {
        self.parse_with(text, origin, |_, _| {})
    }

    /// Like [`Layers::load_with`], for text that lambert wrote; see [`Layers::parse`].
    pub fn parse_with<T: Checked>(
        &self,
        text: &str,
        origin: &str,
        more: impl FnOnce(&T, &mut Vec<ConfigIssue>),
    ) -> Result<T, ConfigError> {
        self.read(&[Text { text: text.into(), origin: origin.into(), is_stored: true }], more)
    }

    fn read<T: Checked>(
        &self,
        texts: &[Text<'_>],
        more: impl FnOnce(&T, &mut Vec<ConfigIssue>),
    ) -> Result<T, ConfigError> {
        let origin = || name_of(texts.iter().map(|text| text.origin.to_string()).collect());
        let mut issues = Vec::new();
        let mut files = Vec::new();
        for text in texts {
            files.push(self.file::<T>(text, &mut issues)?);
        }
        let layers = self.layers::<T>(&files, &mut issues);
        let mut tree = layers::merge(layers, &mut issues)
            .map_err(|source| ConfigError::Merge { origin: origin(), source: Box::new(source) })?;
        T::insert_defaults(&mut tree);
        let parsed = T::read(tree, &mut issues);
        if let Some(config) = &parsed {
            let unread: Vec<String> = issues.iter().map(|issue| issue.key.clone()).collect();
            let mut wrong = Vec::new();
            config.check(&mut wrong);
            more(config, &mut wrong);
            // A value that cannot be parsed has its default here. Issues that this default causes are not reported.
            issues.extend(wrong.into_iter().filter(|issue| !unread.contains(&issue.key)));
        }
        // One more than are listed, so that the error says that there are more.
        issues.truncate(MAX_ISSUES + 1);
        issues.iter_mut().for_each(|issue| self.name_source(issue, &files));
        match parsed {
            Some(config) if issues.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid { origin: origin(), issues }),
        }
    }

    /// Reads a file. Adds an issue for each key that has both its old and its new name.
    fn file<'a, T: Checked>(
        &self,
        text: &'a Text<'_>,
        issues: &mut Vec<ConfigIssue>,
    ) -> Result<FileLayer<'a>, ConfigError> {
        let origin = || text.origin.to_string();
        let table: Table = toml::from_str(&text.text).map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: origin(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        if let (Some(found), Some(expected)) = (ConfigKind::of(&table), T::KIND)
            && found != expected
        {
            return Err(ConfigError::OtherKind { origin: origin(), found, expected });
        }
        let written = layers::of_file(table);
        let message = |RenamedKey { old, new }| format!("{}: {old} was renamed to {new}", text.origin);
        let warn = self.warn.filter(|_| !text.is_stored);
        let renamed = rename::<T>(written.clone(), warn, message, issues);
        Ok(FileLayer { origin: &text.origin, written, renamed })
    }

    /// Adds the option, the variable or, of several files, the file that set the value of an issue to its message. The last
    /// one wins. An option that sets a key below that of the issue counts if no file has the key of the issue.
    fn name_source(&self, issue: &mut ConfigIssue, files: &[FileLayer<'_>]) {
        let path: Vec<String> = issue.key.split('.').map(str::to_owned).collect();
        let section = format!("{}.", issue.key);
        let is_in_file = files.iter().any(|file| file.sets(&path));
        let is_of = |key: &str| {
            let key = layers::dotted(key.trim());
            !issue.key.is_empty() && (key == issue.key || !is_in_file && key.starts_with(&section))
        };
        let in_files = || files.iter().rev().find(|file| files.len() > 1 && file.determines(&path));
        let set = self.sets.iter().rev().filter_map(|set| set.split_once('=')).find(|(key, _)| is_of(key));
        let in_environment = || self.environment.iter().rev().find(|(key, _)| is_of(key));
        let (source, value) = match (set, in_environment()) {
            (Some((key, value)), _) => (format!("--set {}", key.trim()), value.trim()),
            (None, Some((key, value))) => (variable(key), value.as_str()),
            (None, None) => match in_files() {
                Some(file) => return issue.message += &format!(" ({})", file.origin),
                None => return,
            },
        };
        // TOML has no larger integers, so the value became a string.
        if value.parse::<u128>().is_ok_and(|number| number > i64::MAX as u128) && issue.message.starts_with("invalid") {
            issue.value = Some(value.to_owned());
            issue.message = format!("must be at most {}", i64::MAX);
        }
        issue.message += &format!(" ({source})");
    }

    /// Returns all layers, with old names of keys replaced.
    fn layers<T: Checked>(&self, files: &[FileLayer<'_>], issues: &mut Vec<ConfigIssue>) -> Vec<Layer> {
        let not_utf_8 = |name| ConfigIssue::new("", format!("{name}: the value is not UTF-8"));
        issues.extend(self.unreadable.iter().map(not_utf_8));
        let sets = self.settings(issues);
        let in_environment = |key: RenamedKey| format!("{} was renamed to {}", variable(&key.old), variable(&key.new));
        let in_sets = |RenamedKey { old, new }| format!("--set {old} was renamed to --set {new}");
        let mut all: Vec<Layer> = files.iter().map(|file| file.renamed.clone()).collect();
        all.push(rename::<T>(layers::of_settings(&self.environment), self.warn, in_environment, issues));
        all.push(rename::<T>(layers::of_settings(&sets), self.warn, in_sets, issues));
        all
    }

    /// Parses `--set` into keys and values.
    fn settings(&self, issues: &mut Vec<ConfigIssue>) -> Vec<layers::Setting> {
        let mut settings = Vec::new();
        for set in &self.sets {
            match set.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    settings.push((key.trim().to_owned(), value.trim().to_owned()));
                }
                _ => issues.push(ConfigIssue::new("", format!("--set {set}: expected key=value"))),
            }
        }
        settings
    }
}

/// Replaces old names of keys in `layer`. Passes the `message` of each to `warn`.
fn rename<T: Checked>(
    mut layer: Layer,
    warn: Option<fn(&str)>,
    message: impl Fn(RenamedKey) -> String,
    issues: &mut Vec<ConfigIssue>,
) -> Layer {
    let renamed = renames::apply(T::RENAMED, &mut layer, issues);
    if let Some(warn) = warn {
        renamed.into_iter().for_each(|key| warn(&message(key)));
    }
    layer
}

/// Names a configuration by its files.
fn name_of(files: Vec<String>) -> String {
    match files.as_slice() {
        [file] => file.clone(),
        files => format!("the configuration in {}", files.join(", ")),
    }
}

/// Returns the environment variable of a key.
fn variable(key: &str) -> String {
    format!("LAMBERT__{}", key.to_uppercase().replace('.', "__"))
}

#[cfg(test)]
mod tests;
