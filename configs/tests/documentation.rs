//! docs/reference/configuration.md lists exactly the keys that the code reads, with their defaults.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::collections::BTreeMap;

use lambert_config::{Checked, PrepConfig, RunConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/configuration.md");

/// Sections by path, for example `stage.growth`: each key with its documented default, `None` without one.
type Sections = BTreeMap<String, BTreeMap<String, Option<String>>>;

/// Parses the sections under the heading `title`.
fn documented(document: &str, title: &str) -> Sections {
    let part = document.split("\n## ").find(|part| part.starts_with(title)).unwrap();
    let mut sections = Sections::new();
    let mut section = String::new();
    for line in part.lines() {
        if let Some(name) = line.strip_prefix("### [") {
            section = name.trim_matches(['[', ']']).to_owned();
            assert!(sections.insert(section.clone(), BTreeMap::new()).is_none(), "[{section}] stands there twice");
        } else if let Some(row) = line.strip_prefix("| `") {
            let (key, rest) = row.split_once("` | ").unwrap();
            let (default, meaning) = rest.split_once(" | ").unwrap();
            assert!(meaning.ends_with(". |"), "{section}.{key}: {meaning:?} is no sentence");
            let default = (default != "–").then(|| default.trim_matches('`').to_owned());
            let twice = sections.get_mut(&section).unwrap().insert(key.to_owned(), default);
            assert!(twice.is_none(), "{section}.{key} stands there twice");
        }
    }
    sections
}

/// Creates a configuration with only `leaf` at `path`. Lists of tables get one element.
fn tree(path: &[String], lists: &[&str], leaf: Table) -> Table {
    path.iter().rev().fold(leaf, |inner, name| {
        let value = Value::Table(inner);
        let value = if lists.contains(&name.as_str()) { Value::Array(vec![value]) } else { value };
        Table::from_iter([(name.clone(), value)])
    })
}

/// Returns the keys of the table at `path`, taken from the error about an unknown key; `None` if it is not a table.
fn keys<T: DeserializeOwned>(path: &[String], lists: &[&str]) -> Option<Vec<String>> {
    let unknown = Table::from_iter([("?".to_owned(), Value::Boolean(true))]);
    let error = T::deserialize(Value::Table(tree(path, lists, unknown))).err()?.to_string();
    let known = error.split_once("unknown field `?`, expected ")?.1.lines().next()?;
    Some(known.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Collects every table that the code reads, with its keys.
fn read<T: DeserializeOwned>(path: &[String], lists: &[&str], found: &mut BTreeMap<String, Vec<String>>) {
    let Some(keys) = keys::<T>(path, lists) else { return };
    for key in &keys {
        read::<T>(&[path, std::slice::from_ref(key)].concat(), lists, found);
    }
    if !path.is_empty() {
        found.insert(path.join("."), keys);
    }
}

/// Compares a part of the document with the configuration `T`, whose lists of tables are `lists`.
fn compare<T: DeserializeOwned + Serialize + PartialEq>(title: &str, lists: &[&str], shared: &[&str]) {
    let documented = documented(&std::fs::read_to_string(DOCUMENT).unwrap(), title);
    let mut code = BTreeMap::new();
    read::<T>(&[], lists, &mut code);
    code.retain(|section, _| !shared.contains(&section.as_str()));
    assert!(documented.keys().eq(code.keys()), "{:?}\n{:?}", documented.keys(), code.keys());
    for (section, keys) in code {
        let written = &documented[&section];
        let mut keys = keys;
        keys.sort();
        assert!(written.keys().eq(keys.iter()), "[{section}]: {:?}\n{keys:?}", written.keys());
        let path: Vec<String> = section.split('.').map(str::to_owned).collect();
        for (key, default) in written {
            let with = |leaf: Table| T::deserialize(Value::Table(tree(&path, lists, leaf)));
            let Some(default) = default else {
                assert!(is_nothing(with(Table::new()).ok().as_ref(), &path, key), "{section}.{key} has a default");
                continue;
            };
            let leaf: Table = toml::from_str(&format!("{key} = {default}")).unwrap();
            let (set, unset) = (with(leaf).unwrap(), with(Table::new()).unwrap());
            assert!(set == unset, "{section}.{key}: {default} is not its default");
        }
    }
}

/// True if the key is absent or empty by default, or is a separate section of the document.
fn is_nothing(config: Option<&impl Serialize>, path: &[String], key: &str) -> bool {
    // A table in which every key is required.
    let Some(config) = config else { return true };
    let mut value = &Value::try_from(config).unwrap();
    for name in path {
        let Some(inner) = value.get(name).map(|value| value.get(0).unwrap_or(value)) else { return true };
        value = inner;
    }
    match value.get(key) {
        None | Some(Value::Table(_)) => true,
        Some(value) => value.as_str() == Some("") || value.as_integer() == Some(0),
    }
}

#[test]
fn every_key_of_a_run_is_documented() {
    compare::<RunConfig>("Training runs", &["stage"], &[]);
}

#[test]
fn every_key_of_a_preparation_is_documented() {
    compare::<PrepConfig>("Preparations", &["source", "exclude"], &["slurm"]);
}

#[test]
fn every_renamed_key_is_documented() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let part = document.split("\n## ").find(|part| part.starts_with("Renamed keys")).unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |")?.split_once("` | `"));
    assert!(rows.eq(RunConfig::RENAMED.iter().copied()));
}
