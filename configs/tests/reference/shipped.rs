//! Tests that every configuration file of the repository names its schema and follows the schema.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::Table;

use super::{repository, schema, validator};

/// Schema that a configuration file may name.
struct NamedSchema {
    path: PathBuf,
    root: Value,
}

fn schemas() -> Vec<NamedSchema> {
    let named = |path: &str, root| NamedSchema { path: repository(path).canonicalize().unwrap(), root };
    vec![named("configs/run.schema.json", schema::run()), named("configs/prep.schema.json", schema::prep())]
}

/// Collects the configuration files below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_other = ["Cargo.toml", "book.toml"].iter().any(|name| path.ends_with(name));
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "toml") && !is_other {
            files.push(path);
        }
    }
}

fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    ["configs", "docs"].iter().for_each(|folder| collect(&repository(folder), &mut files));
    assert!(files.len() >= 20, "{files:?}");
    files
}

/// Returns the schema that the first line of the file at `path` names.
fn schema_of<'a>(path: &Path, text: &str, schemas: &'a [NamedSchema]) -> Option<&'a NamedSchema> {
    let named = text.lines().next()?.strip_prefix("#:schema ")?;
    let named = path.parent()?.join(named).canonicalize().ok()?;
    schemas.iter().find(|schema| schema.path == named)
}

#[test]
fn every_shipped_file_follows_the_schema_that_it_names() {
    let schemas = schemas();
    for path in files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.display();
        let schema = schema_of(path.to_string().as_ref(), &text, &schemas);
        let schema = schema.unwrap_or_else(|| panic!("{path}: the first line must be #:schema PATH"));
        let file = serde_json::to_value(toml::from_str::<Table>(&text).unwrap()).unwrap();
        let mut unknown = Vec::new();
        undescribed(&schema.root, &schema.root, &file, "", &mut unknown);
        assert!(unknown.is_empty(), "{path}: the schema does not describe {unknown:?}");
        let errors = validator::errors(&schema.root, &file);
        assert!(errors.is_empty(), "{path}: {errors:#?}");
    }
}

/// Collects the keys of `value` that `node` of the schema `root` does not describe.
fn undescribed(root: &Value, node: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let node = resolve(root, node);
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                let path = format!("{path}.{key}");
                match &node["properties"][key] {
                    property if property["description"].is_string() => undescribed(root, property, value, &path, found),
                    _ => found.push(path),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| undescribed(root, &node["items"], item, path, found)),
        _ => {}
    }
}

/// Follows a reference within the schema `root`.
pub fn resolve<'a>(root: &'a Value, node: &'a Value) -> &'a Value {
    let target = node["$ref"].as_str().and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    target.unwrap_or(node)
}
