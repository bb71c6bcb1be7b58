//! Configuration layers (files, environment, `--set`) as sources of the crate `config`, which merges them.
//!
//! A layer writes directly into the merged tree, so that it can distinguish a list from a section. For example,
//! `stage.0.steps` names a list element, which must exist. If an assignment fails, its key gets an issue. All other
//! assignments still take effect.

use std::sync::{Arc, Mutex, PoisonError};

use config::{Config, Map, Source, Value, ValueKind};
use toml::Table;

use super::error::ConfigIssue;

/// The only key at the root of the merged tree. The configuration is below this key, because the crate parses keys at
/// the root as paths and would split a key that contains a dot.
const ROOT: &str = "configuration";

/// Key and value as the user wrote them.
pub type Setting = (String, String);

/// Assignments of a layer, in order.
pub type Layer = Vec<Assignment>;

/// Value and its path in the configuration tree.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Keys and indices from the root. Empty for the root itself: the content of a file.
    pub path: Vec<String>,
    /// Value.
    pub value: toml::Value,
}

impl Assignment {
    /// True if the assignment sets the key at `path` or a key below `path`.
    pub fn sets(&self, path: &[String]) -> bool {
        match path.strip_prefix(&*self.path) {
            Some(rest) => rest.iter().try_fold(&self.value, |value, part| child(value, part)).is_some(),
            None => self.path.starts_with(path),
        }
    }

    /// True if the assignment sets a list or a plain value above the key at `path`. What earlier layers have there is lost.
    pub fn replaces(&self, path: &[String]) -> bool {
        let Some(rest) = path.strip_prefix(&*self.path) else { return false };
        let mut value = &self.value;
        for part in rest {
            match value.as_table().map(|table| table.get(part)) {
                Some(Some(inner)) => value = inner,
                Some(None) => return false,
                None => return true,
            }
        }
        false
    }
}

fn child<'a>(value: &'a toml::Value, part: &str) -> Option<&'a toml::Value> {
    match value {
        toml::Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        other => other.get(part),
    }
}

/// Creates the layer of a file.
pub fn of_file(content: Table) -> Layer {
    vec![Assignment { path: Vec::new(), value: toml::Value::Table(content) }]
}

/// Creates the layer of environment variables or `--set` options.
pub fn of_settings(settings: &[Setting]) -> Layer {
    let assignment = |(key, value): &Setting| {
        let path = dotted(key).split('.').map(str::to_owned).collect();
        Assignment { path, value: value_of(value) }
    };
    settings.iter().map(assignment).collect()
}

/// Merges layers in order, the files first. Assignments that fail are added to `issues`.
///
/// # Errors
/// The crate `config` rejects a layer, which is not expected.
pub fn merge(layers: Vec<Layer>, issues: &mut Vec<ConfigIssue>) -> Result<toml::Value, config::ConfigError> {
    let failed = Arc::new(Mutex::new(Vec::new()));
    let mut builder = Config::builder();
    for layer in layers {
        builder = builder.add_source(Assignments { layer, failed: Arc::clone(&failed) });
    }
    let merged = builder.build()?;
    issues.append(&mut failed.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(to_toml(Value::new(None, ValueKind::Table(merged.get_table(ROOT)?))))
}

/// Layer as a `config` source.
#[derive(Debug, Clone)]
struct Assignments {
    layer: Layer,
    failed: Arc<Mutex<Vec<ConfigIssue>>>,
}

impl Source for Assignments {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        let mut tree = Value::new(None, Map::<String, Value>::new());
        self.collect_to(&mut tree)?;
        tree.into_table()
    }

    fn collect_to(&self, tree: &mut Value) -> Result<(), config::ConfigError> {
        for Assignment { path, value } in &self.layer {
            if path.is_empty() {
                let root = Map::from([(ROOT.to_owned(), from_toml(value.clone()))]);
                overlay(tree, Value::new(None, root));
                continue;
            }
            let from_root: Vec<&str> = std::iter::once(ROOT).chain(path.iter().map(String::as_str)).collect();
            if let Err(message) = insert(tree, &from_root, from_toml(value.clone())) {
                let issue = ConfigIssue::new(path.join("."), message);
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(issue);
            }
        }
        Ok(())
    }
}

/// Normalizes `stage[0].steps` to `stage.0.steps`.
pub fn dotted(key: &str) -> String {
    let mut dotted = String::new();
    let mut rest = key;
    while let Some((before, index, behind)) = index_in(rest) {
        dotted += &format!("{before}.{index}");
        rest = behind;
    }
    dotted + rest
}

/// Splits at the first `[number]`: text before it, the number, text after it.
fn index_in(key: &str) -> Option<(&str, usize, &str)> {
    let (before, rest) = key.split_once('[')?;
    let (index, behind) = rest.split_once(']')?;
    Some((before, index.parse().ok()?, behind))
}

/// Parses a value after `=`: as TOML (`3`, `true`, `[1, 2]`, `"3"`) if it is valid TOML, otherwise as a string.
fn value_of(text: &str) -> toml::Value {
    toml::from_str::<Table>(&format!("value = {text}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Inserts `value` at `path` below `node`. Creates missing sections, but no list elements.
fn insert(node: &mut Value, path: &[&str], value: Value) -> Result<(), String> {
    let Some((first, rest)) = path.split_first() else {
        *node = value;
        return Ok(());
    };
    match &mut node.kind {
        ValueKind::Table(table) => {
            let section = || Value::new(None, Map::<String, Value>::new());
            insert(table.entry((*first).to_owned()).or_insert_with(section), rest, value)
        }
        ValueKind::Array(items) => {
            let count = items.len();
            match first.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                Some(item) => insert(item, rest, value),
                None => Err(no_element(first, count)),
            }
        }
        _ => Err(format!("no key {first}: the parent is a value, not a section")),
    }
}

/// Error for `key` in place of the index of an element of a list with `count` elements.
fn no_element(key: &str, count: usize) -> String {
    let indices = match count {
        0 => return format!("no element {key}: the list is empty"),
        1 => "the only index is 0".to_owned(),
        _ => format!("the indices are 0 to {}", count - 1),
    };
    match key.parse::<usize>() {
        Ok(_) => format!("no element {key}: {indices}"),
        Err(_) => format!("no element {key}: write an index of the list before it, as in 0.{key} ({indices})"),
    }
}

/// Merges `later` into `node`: sections by key. Other values, also lists, replace the earlier value.
fn overlay(node: &mut Value, later: Value) {
    match (&mut node.kind, later.kind) {
        (ValueKind::Table(table), ValueKind::Table(later)) => {
            for (key, value) in later {
                match table.get_mut(&key) {
                    Some(earlier) => overlay(earlier, value),
                    None => drop(table.insert(key, value)),
                }
            }
        }
        (kind, later) => *kind = later,
    }
}

fn from_toml(value: toml::Value) -> Value {
    let kind = match value {
        toml::Value::String(text) => ValueKind::String(text),
        toml::Value::Integer(number) => ValueKind::I64(number),
        toml::Value::Float(number) => ValueKind::Float(number),
        toml::Value::Boolean(value) => ValueKind::Boolean(value),
        // No key has a date as its value. A date becomes a string, which a key that expects a number rejects.
        toml::Value::Datetime(date) => ValueKind::String(date.to_string()),
        toml::Value::Array(items) => ValueKind::Array(items.into_iter().map(from_toml).collect()),
        toml::Value::Table(table) => {
            ValueKind::Table(table.into_iter().map(|(key, value)| (key, from_toml(value))).collect())
        }
    };
    Value::new(None, kind)
}

/// Inverse of [`from_toml`], which never creates nil values or integers longer than 64 bits.
fn to_toml(value: Value) -> toml::Value {
    match value.kind {
        ValueKind::Boolean(value) => toml::Value::Boolean(value),
        ValueKind::I64(number) => toml::Value::Integer(number),
        ValueKind::Float(number) => toml::Value::Float(number),
        ValueKind::Array(items) => toml::Value::Array(items.into_iter().map(to_toml).collect()),
        ValueKind::Table(table) => {
            toml::Value::Table(table.into_iter().map(|(key, value)| (key, to_toml(value))).collect())
        }
        ValueKind::String(text) => toml::Value::String(text),
        other => toml::Value::String(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(file: &str, environment: &[(&str, &str)], sets: &[(&str, &str)]) -> (toml::Value, Vec<ConfigIssue>) {
        let owned = |settings: &[(&str, &str)]| -> Vec<Setting> {
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mut issues = Vec::new();
        let layers =
            vec![of_file(toml::from_str(file).unwrap()), of_settings(&owned(environment)), of_settings(&owned(sets))];
        let tree = merge(layers, &mut issues).unwrap();
        (tree, issues)
    }

    #[test]
    fn later_layers_win_and_lists_stay_lists() {
        let file = "a = 1\n[[stage]]\nsteps = 1\n[[stage]]\nsteps = 2\n";
        let (tree, issues) =
            merged(file, &[("stage.0.steps", "3"), ("a", "2")], &[("stage[1].steps", "4"), ("a", "3")]);
        assert_eq!(issues, []);
        assert_eq!(
            tree,
            toml::Value::Table(toml::from_str("a = 3\n[[stage]]\nsteps = 3\n[[stage]]\nsteps = 4\n").unwrap())
        );
    }

    #[test]
    fn overlapping_settings_are_applied_in_their_order() {
        let sets = [("stage.0", "{ steps = 5, rate = 2 }"), ("stage.0.steps", "6")];
        let (tree, _) = merged("[[stage]]\nsteps = 1\n", &[], &sets);
        assert_eq!(tree["stage"][0].to_string(), "{ rate = 2, steps = 6 }");
    }

    #[test]
    fn an_element_of_a_list_needs_its_index() {
        let message = |file: &str, key: &str| merged(file, &[], &[(key, "3")]).1[0].to_string();
        let (one, two) = ("[[stage]]\nsteps = 1\n", "[[stage]]\nsteps = 1\n[[stage]]\nsteps = 2\n");
        let expected = "write an index of the list before it, as in 0.steps (the only index is 0)";
        assert!(message(one, "stage.steps").contains(expected), "{}", message(one, "stage.steps"));
        assert!(message(two, "stage.2.steps").contains("no element 2: the indices are 0 to 1"));
        assert!(message("stage = []", "stage.0.steps").contains("no element 0: the list is empty"));
    }

    #[test]
    fn values_keep_their_kinds() {
        let (tree, issues) =
            merged("", &[], &[("a", "yes"), ("b", "3.7"), ("c", "\"4\""), ("d", "9223372036854775807")]);
        assert_eq!(issues, []);
        let kinds = ["a", "b", "c", "d"].map(|key| tree[key].type_str());
        assert_eq!(kinds, ["string", "float", "string", "integer"]);
    }

    #[test]
    fn a_key_with_a_dot_in_a_file_is_one_key() {
        let (tree, _) = merged("\"a.b\" = 1\n", &[], &[]);
        assert_eq!(tree["a.b"].as_integer(), Some(1));
    }

    #[test]
    fn missing_parents_are_issues_of_their_keys() {
        let (_, issues) =
            merged("a = 1\n[[stage]]\n", &[], &[("stage[-3].steps", "1"), ("stage[4].steps", "1"), ("a.b", "1")]);
        let keys: Vec<&str> = issues.iter().map(|issue| &*issue.key).collect();
        assert_eq!(keys, ["stage.4.steps", "a.b"]);
    }
}
