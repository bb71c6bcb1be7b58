//! Tests that the schemas have exactly the keys that the parser reads, with the same defaults.

use std::collections::BTreeMap;

use lambert_config::{Checked, PrepConfig, RunConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::shipped::resolve;
use super::{repository, schema};

/// Sections by path, for example `stage.growth`. Each section maps its keys to their defaults in the schema. The
/// default is `None` if the schema has no default.
type Sections = BTreeMap<String, BTreeMap<String, Option<serde_json::Value>>>;

/// Collects the sections of a schema.
fn described(root: &serde_json::Value, node: &serde_json::Value, path: &str, sections: &mut Sections) {
    let node = resolve(root, node);
    let node = if node["items"].is_object() { resolve(root, &node["items"]) } else { node };
    let Some(properties) = node["properties"].as_object() else { return };
    for (key, property) in properties {
        let section = sections.entry(path.to_owned()).or_default();
        section.insert(key.clone(), property.get("default").cloned());
        described(root, property, format!("{path}.{key}").trim_start_matches('.'), sections);
    }
}

/// Creates a configuration with only `leaf` at `path`. Lists of tables get one element.
fn tree(path: &[String], lists: &[&str], leaf: Table) -> Table {
    path.iter().rev().fold(leaf, |inner, name| {
        let value = Value::Table(inner);
        let value = if lists.contains(&name.as_str()) { Value::Array(vec![value]) } else { value };
        Table::from_iter([(name.clone(), value)])
    })
}

/// Returns the keys of the table at `path`, which the error about an unknown key lists. `None` if there is no table at
/// `path`.
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

/// Compares a schema with the configuration `T`, whose lists of tables are `lists`.
fn compare<T: DeserializeOwned + Serialize + PartialEq>(schema: &serde_json::Value, lists: &[&str]) {
    let mut sections = Sections::new();
    described(schema, schema, "", &mut sections);
    let root = sections.remove("").unwrap();
    let mut code = BTreeMap::new();
    read::<T>(&[], lists, &mut code);
    assert!(root.keys().all(|section| code.contains_key(section)), "{root:?}\n{code:?}");
    assert!(sections.keys().eq(code.keys()), "{:?}\n{:?}", sections.keys(), code.keys());
    for (section, mut keys) in code {
        let written = &sections[&section];
        keys.sort();
        assert!(written.keys().eq(keys.iter()), "[{section}]: {:?}\n{keys:?}", written.keys());
        let path: Vec<String> = section.split('.').map(str::to_owned).collect();
        for (key, default) in written {
            let with = |leaf: Table| T::deserialize(Value::Table(tree(&path, lists, leaf)));
            let Some(default) = default else {
                assert!(is_nothing(with(Table::new()).ok().as_ref(), &path, key), "{section}.{key} has a default");
                continue;
            };
            let leaf = Table::from_iter([(key.clone(), Value::try_from(default).unwrap())]);
            let (set, unset) = (with(leaf).unwrap(), with(Table::new()).unwrap());
            assert!(set == unset, "{section}.{key}: {default} is not its default");
        }
    }
}

/// True if the key is absent or empty by default, or is a separate section of the document.
fn is_nothing(config: Option<&impl Serialize>, path: &[String], key: &str) -> bool {
    // Every key of this table is required.
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
fn the_schema_of_runs_has_every_key_and_default() {
    compare::<RunConfig>(&schema::run(), &["stage", "mixture", "extra"]);
}

#[test]
fn the_schema_of_preparations_has_every_key_and_default() {
    compare::<PrepConfig>(&schema::prep(), &["source", "exclude"]);
}

#[test]
fn every_renamed_key_is_documented() {
    let document = std::fs::read_to_string(repository("docs/reference/configuration.md")).unwrap();
    let part = document.split("\n## ").find(|part| part.starts_with("Renamed keys")).unwrap();
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |")?.split_once("` | `"));
    assert!(rows.eq(RunConfig::RENAMED.iter().copied()));
}
