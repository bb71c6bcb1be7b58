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
            issue.message = format!("is {value}; must be at most {}", i64::MAX);
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

    fn merge(texts: &[(&'static str, &'static str)], sets: &[&str]) -> Result<Outer, ConfigError> {
        let texts: Vec<Text<'_>> = texts
            .iter()
            .map(|(origin, text)| Text { text: (*text).into(), origin: (*origin).into(), is_stored: false })
            .collect();
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        Layers::from_sets(&sets).read(&texts, |_, _| {})
    }

    #[test]
    fn a_later_file_overrides_keys_and_replaces_lists() {
        let site =
            "size = 3\nwords = ['a', 'b']\n[inner]\ntext = 'site'\nshare = 0.5\n[[list]]\nshare = 1.0\n[[list]]\n";
        let experiment = "number = 4\nwords = ['c']\n[inner]\ntext = 'experiment'\n[[list]]\ntext = 'one'\n";
        let config = merge(&[("site.toml", site), ("run.toml", experiment)], &["inner.share=0.25"]).unwrap();
        assert_eq!((config.number, config.inner.text.as_str(), config.inner.share), (4, "experiment", 0.25));
        assert_eq!(config.words, ["c"]);
        assert_eq!((config.list.len(), config.list[0].text.as_str(), config.list[0].share), (1, "one", 0.0));
        // The old name in a later file overrides the new one in an earlier file.
        assert_eq!(merge(&[("a", "number = 4"), ("b", "size = 3\n[inner]")], &[]).unwrap().number, 3);
        let other_kind = merge(&[("a", "number = 1\n[list]\nx = 1"), ("b", "[[list]]")], &[]);
        assert_eq!(other_kind.unwrap().list.len(), 1, "a list in place of a section");
    }

    #[test]
    fn an_issue_names_the_file_of_several() {
        let site = "numbr = 3\nnumber = 1\n[inner]\ntext = 4\nshare = 'x'\n[[list]]\nshare = 'much'\nother = 1\n";
        let experiment = "number = 0\n[inner]\nshare = 'y'\nsize = 1\n[[list]]\nshare = 'little'\n";
        let sets = ["list.3.share=1", "words=3"];
        let message = merge(&[("site.toml", site), ("run.toml", experiment)], &sets).unwrap_err().to_string();
        assert!(message.starts_with("the configuration in site.toml, run.toml has 8 errors:"), "{message}");
        for (key, file) in [
            ("numbr", "site.toml"),
            ("inner.text", "site.toml"),
            ("inner.share", "run.toml"),
            ("inner.size", "run.toml"),
            ("list.0.share", "run.toml"),
            ("number", "run.toml"),
            ("list.3.share", "--set list.3.share"),
            ("words", "--set words"),
        ] {
            let issue = message.lines().find(|line| line.trim_start().starts_with(&format!("{key}: ")));
            assert!(issue.is_some_and(|line| line.ends_with(&format!(" ({file})"))), "{key}: {message}");
        }
        let message = merge(&[("site.toml", ""), ("run.toml", "number = 1\n[inner\n")], &[]).unwrap_err().to_string();
        assert!(message.starts_with("run.toml is not TOML") && message.contains("line 2"), "{message}");
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
        let config: Outer = layers_with_old_names().load(std::slice::from_ref(&path)).unwrap();
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
