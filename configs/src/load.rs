//! Layered configuration: a TOML file, then `LAMBERT__A__B=value` from the environment, then `--set a.b=value`.
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

use std::path::Path;

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

/// Configuration layers that override the file.
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
    text: &'a str,
    /// Name of the file in messages.
    origin: &'a str,
    /// True if lambert wrote the text.
    is_stored: bool,
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

    /// Loads `path`, applies the other layers and validates the result.
    pub fn load<T: Checked>(&self, path: &Path) -> Result<T, ConfigError> {
        self.load_with(path, |_, _| {})
    }

    /// Like [`Layers::load`], with additional checks by the caller. The issues from these checks are added to the
    /// report.
    pub fn load_with<T: Checked>(
        &self,
        path: &Path,
        more: impl FnOnce(&T, &mut Vec<ConfigIssue>),
    ) -> Result<T, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        self.read(&Text { text: &text, origin: &path.display().to_string(), is_stored: false }, more)
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
        self.read(&Text { text, origin, is_stored: true }, more)
    }

    fn read<T: Checked>(
        &self,
        text: &Text<'_>,
        more: impl FnOnce(&T, &mut Vec<ConfigIssue>),
    ) -> Result<T, ConfigError> {
        let origin = || text.origin.to_owned();
        let table: Table = toml::from_str(text.text).map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: origin(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        if let (Some(found), Some(expected)) = (ConfigKind::of(&table), T::KIND)
            && found != expected
        {
            return Err(ConfigError::OtherKind { origin: origin(), found, expected });
        }
        let mut issues = Vec::new();
        let file = layers::of_file(table.clone());
        let layers = self.layers::<T>(table, text, &mut issues);
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
        issues.iter_mut().for_each(|issue| self.name_source(issue, &file));
        match parsed {
            Some(config) if issues.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid { origin: origin(), issues }),
        }
    }

    /// Adds the option or variable that set the value of an issue to its message. The last one wins. An option that sets a
    /// key below that of the issue counts if `file` does not have the key of the issue.
    fn name_source(&self, issue: &mut ConfigIssue, file: &Layer) {
        let path: Vec<String> = issue.key.split('.').map(str::to_owned).collect();
        let section = format!("{}.", issue.key);
        let is_in_file = file.iter().any(|assignment| assignment.sets(&path));
        let is_of = |key: &str| {
            let key = layers::dotted(key.trim());
            !issue.key.is_empty() && (key == issue.key || !is_in_file && key.starts_with(&section))
        };
        let set = self.sets.iter().rev().filter_map(|set| set.split_once('=')).find(|(key, _)| is_of(key));
        let in_environment = || self.environment.iter().rev().find(|(key, _)| is_of(key));
        let (source, value) = match (set, in_environment()) {
            (Some((key, value)), _) => (format!("--set {}", key.trim()), value.trim()),
            (None, Some((key, value))) => (variable(key), value.as_str()),
            (None, None) => return,
        };
        // TOML has no larger integers, so the value became a string.
        if value.parse::<u128>().is_ok_and(|number| number > i64::MAX as u128) && issue.message.starts_with("invalid") {
            issue.message = format!("is {value}; must be at most {}", i64::MAX);
        }
        issue.message += &format!(" ({source})");
    }

    /// Returns all layers, with old names of keys replaced.
    fn layers<T: Checked>(&self, file: Table, text: &Text<'_>, issues: &mut Vec<ConfigIssue>) -> Vec<Layer> {
        let not_utf_8 = |name| ConfigIssue::new("", format!("{name}: the value is not UTF-8"));
        issues.extend(self.unreadable.iter().map(not_utf_8));
        let sets = self.settings(issues);
        let in_file = |RenamedKey { old, new }| format!("{}: {old} was renamed to {new}", text.origin);
        let in_environment = |key: RenamedKey| format!("{} was renamed to {}", variable(&key.old), variable(&key.new));
        let in_sets = |RenamedKey { old, new }| format!("--set {old} was renamed to --set {new}");
        let mut rename = |mut layer: Layer, message: &dyn Fn(RenamedKey) -> String, is_silent: bool| {
            let renamed = renames::apply(T::RENAMED, &mut layer, issues);
            if let Some(warn) = self.warn.filter(|_| !is_silent) {
                renamed.into_iter().for_each(|key| warn(&message(key)));
            }
            layer
        };
        vec![
            rename(layers::of_file(file), &in_file, text.is_stored),
            rename(layers::of_settings(&self.environment), &in_environment, false),
            rename(layers::of_settings(&sets), &in_sets, false),
        ]
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

/// Returns the environment variable of a key.
fn variable(key: &str) -> String {
    format!("LAMBERT__{}", key.to_uppercase().replace('.', "__"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

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
        const RENAMED: &'static [(&'static str, &'static str)] = &[("list.*.part", "list.*.share"), ("size", "number")];

        fn read(tree: toml::Value, issues: &mut Vec<ConfigIssue>) -> Option<Self> {
            strict::read_all(tree, issues)
        }

        fn check(&self, issues: &mut Vec<ConfigIssue>) {
            if self.number == 0 {
                issues.push(ConfigIssue::new("number", "must be at least 1"));
            }
        }
    }

    fn parse(text: &str, sets: &[&str]) -> Result<Outer, ConfigError> {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        Layers::from_sets(&sets).parse(text, "test.toml")
    }

    fn keys(error: ConfigError) -> Vec<String> {
        match error {
            ConfigError::Invalid { issues, .. } => issues.into_iter().map(|issue| issue.key).collect(),
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
    fn all_issues_are_listed() {
        let text = "numbr = 3\nnumber = 'x'\n[inner]\ntext = 4\nsize = 1\n[[list]]\nshare = 'much'\nother = 1";
        let mut found = keys(parse(text, &["list.4.share=1", "nonsense"]).unwrap_err());
        found.sort();
        assert_eq!(
            found,
            ["", "inner.size", "inner.text", "list.0.other", "list.0.share", "list.4.share", "number", "numbr"]
        );
    }

    #[test]
    fn an_issue_names_the_option_or_variable_that_set_the_value() {
        let environment = vec![("inner.share".to_owned(), "much".to_owned())];
        let sets = ["number=0", "list[0].share=18446744073709551615x", "=3"].map(str::to_owned).to_vec();
        let layers = Layers { environment, sets, ..Layers::default() };
        let message = layers.parse::<Outer>("number = 1\n[[list]]", "test.toml").unwrap_err().to_string();
        for line in ["--set =3: expected key=value\n", "must be at least 1 (--set number)", "(LAMBERT__INNER__SHARE)"] {
            assert!(message.contains(line), "no {line:?} in {message}");
        }
        assert!(message.contains("(--set list[0].share)"), "{message}");
        let message = parse("", &["number=18446744073709551615"]).unwrap_err().to_string();
        assert!(
            message.contains("number: is 18446744073709551615; must be at most 9223372036854775807 (--set number)")
        );
        let message = parse("number = 0", &[]).unwrap_err().to_string();
        assert!(message.ends_with("number: must be at least 1"), "{message}");
    }

    #[test]
    fn an_unknown_section_names_the_option_or_variable_that_made_it() {
        let layers = Layers {
            environment: vec![("other.text".to_owned(), "1".to_owned())],
            sets: ["inne.text=a", "inne[0].more=b", "third.text=c"].map(str::to_owned).to_vec(),
            ..Layers::default()
        };
        let message = layers.parse::<Outer>("number = 1\n[third]\n", "test.toml").unwrap_err().to_string();
        for (key, source) in
            [("inne", " (--set inne[0].more)"), ("other", " (LAMBERT__OTHER__TEXT)"), ("third", "`pairs`")]
        {
            let issue = message.lines().find(|line| line.trim_start().starts_with(&format!("{key}: unknown field")));
            assert!(issue.is_some_and(|line| line.ends_with(source)), "{key}: {message}");
        }
    }

    #[test]
    fn an_invalid_list_element_hides_no_other_issue() {
        for list in ["words = ['a', 4]", "words = [4]", "pairs = [[1, 2], [3, 'x']]"] {
            let found = keys(parse(&format!("{list}\n[inner]\ntext = 4"), &[]).unwrap_err());
            assert!(
                found.len() == 3 && found.contains(&"inner.text".into()) && found.contains(&"number".into()),
                "{list}: {found:?}"
            );
        }
    }

    #[test]
    fn validation_runs_despite_parse_errors() {
        assert_eq!(keys(parse("[inner]\nsize = 1", &[]).unwrap_err()), ["inner.size", "number"]);
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let message = parse("number = 1\n[inner\n", &[]).unwrap_err().to_string();
        assert!(message.contains("test.toml") && message.contains("line 2"), "{message}");
    }

    thread_local! {
        static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Layers that collect their warnings in `WARNINGS`. The environment and `--set` each contain an old name.
    fn layers_with_old_names() -> Layers {
        let environment = vec![("list.1.part".to_owned(), "0.25".to_owned())];
        let sets = vec!["list[0].part=0.5".to_owned()];
        let layers = Layers { environment, sets, ..Layers::default() };
        layers.warn_with(|message| WARNINGS.with_borrow_mut(|all| all.push(message.to_owned())))
    }

    #[test]
    fn old_names_of_keys_are_warned_about() {
        let folder = std::env::temp_dir().join(format!("lambert-renamed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run.toml");
        std::fs::write(&path, "size = 3\n[[list]]\npart = 0.1\n[[list]]\npart = 0.2\n").unwrap();
        let config: Outer = layers_with_old_names().load(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((config.number, config.list[0].share, config.list[1].share), (3, 0.5, 0.25));
        let path = path.display();
        let expected = [
            format!("{path}: list.0.part was renamed to list.0.share"),
            format!("{path}: size was renamed to number"),
            "LAMBERT__LIST__1__PART was renamed to LAMBERT__LIST__1__SHARE".to_owned(),
            "--set list.0.part was renamed to --set list.0.share".to_owned(),
        ];
        assert_eq!(WARNINGS.take(), expected);
    }

    #[test]
    fn files_that_lambert_wrote_are_read_silently() {
        let text = "size = 3\n[[list]]\npart = 0.1\n[[list]]\npart = 0.2\n";
        let config: Outer = layers_with_old_names().parse(text, "run.toml").unwrap();
        assert_eq!((config.number, config.list[1].share), (3, 0.25));
        let warnings = WARNINGS.take();
        assert!(warnings.len() == 2 && !warnings.iter().any(|warning| warning.contains("run.toml")), "{warnings:?}");
    }

    #[test]
    fn both_names_of_a_key_are_rejected() {
        let message = parse("size = 3\nnumber = 4\n", &[]).unwrap_err().to_string();
        assert!(message.contains("size: is the old name of number, which is also set"), "{message}");
    }
}
