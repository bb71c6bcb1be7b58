//! JSON schemas (draft 2020-12) of run files and preparation files.

use lambert_config::{ConfigError, Layers, PrepConfig, RunConfig};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{compare_or_write, validator};

/// Required keys, by type. They have a default value in Rust, but the checks reject it.
const REQUIRED: [(&str, &[&str]); 7] = [
    ("Stage", &["name", "steps"]),
    ("MixtureDataset", &["name", "data"]),
    ("HeldOutDataset", &["name", "data"]),
    ("Teacher", &["from"]),
    ("Source", &["path"]),
    ("PrepOutput", &["url"]),
    ("Vocabulary", &["file"]),
];

/// Returns the schema of the files of `lambert run`.
pub fn run() -> Value {
    schema::<RunConfig>("lambert run")
}

/// Returns the schema of the files of `lambert prep`.
pub fn prep() -> Value {
    schema::<PrepConfig>("lambert prep")
}

fn schema<T: JsonSchema>(title: &str) -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    for (section, keys) in REQUIRED {
        if let Some(section) = schema["$defs"].get_mut(section) {
            for key in keys {
                section["properties"][key].as_object_mut().unwrap().shift_remove("default");
            }
            section["required"] = (*keys).into();
        }
    }
    schema["title"] = title.into();
    schema
}

/// Adapts a schema to TOML files and their editors. Removes `null`, the defaults of sections and the names of Rust's
/// number types. Joins the lines of each paragraph of a description.
fn simplify(schema: &mut Value) {
    let Some(node) = schema.as_object_mut() else { return };
    node.shift_remove("format");
    remove_null(node);
    if let Some(Value::String(description)) = node.get_mut("description") {
        *description = one_line_per_paragraph(description);
    }
    if node.get("default").is_some_and(|default| default.is_null() || default.is_object()) {
        node.shift_remove("default");
    }
    for key in ["properties", "$defs"] {
        let children = node.get_mut(key).and_then(Value::as_object_mut);
        children.into_iter().flat_map(Map::values_mut).for_each(simplify);
    }
    for key in ["oneOf", "anyOf"] {
        let children = node.get_mut(key).and_then(Value::as_array_mut);
        children.into_iter().flatten().for_each(simplify);
    }
    node.get_mut("items").into_iter().for_each(simplify);
}

/// Removes `null`, which TOML does not have, from the types of a node.
fn remove_null(node: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = node.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            node["type"] = only.clone();
        }
    }
    let Some(Value::Array(choices)) = node.get_mut("anyOf") else { return };
    choices.retain(|choice| choice["type"] != "null");
    if let [Value::Object(only)] = choices.as_slice() {
        let only = only.clone();
        node.shift_remove("anyOf");
        node.extend(only);
    }
}

/// Joins the lines of each paragraph and removes the escapes and links of rustdoc.
fn one_line_per_paragraph(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let text = paragraphs.collect::<Vec<_>>().join("\n\n");
    let replaced = [("\\[", "["), ("\\]", "]"), ("[`", "`"), ("`]", "`")];
    replaced.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

#[test]
fn schemas_are_up_to_date() {
    for (path, schema) in [("configs/run.schema.json", run()), ("configs/prep.schema.json", prep())] {
        compare_or_write(path, &(serde_json::to_string_pretty(&schema).unwrap() + "\n"));
    }
}

/// Returns the errors of a run file, one per line.
fn errors(text: &str) -> String {
    let file: toml::Table = toml::from_str(text).unwrap();
    let errors = validator::errors(&run(), &serde_json::to_value(file).unwrap());
    errors.iter().map(|error| format!("{error}\n")).collect()
}

#[test]
fn misspelt_keys_and_wrong_types_are_errors() {
    assert_eq!(errors("[model]\nlayers = 3\n[cluster]\nlimits.step_seconds = 9\n"), "");
    for (text, words) in [
        ("[modle]\nlayers = 3", "/modle: unknown key"),
        ("[model]\nlayer = 3", "/model/layer: unknown key"),
        ("[model]\nlayers = \"3\"", "/model/layers: \"3\" is not of type \"integer\""),
        ("[model]\nlayers = -3", "/model/layers: -3 is not of minimum 0"),
        ("[model]\nnorm = \"mid\"", "/model/norm: \"mid\" fits 0 of oneOf"),
        ("[cluster]\nrestarts = 3", "/cluster/restarts: unknown key"),
        ("[[stage]]\ndata = \"a\"\nsteps = 3", "/stage/0/name: required"),
        ("[[stage]]\nname = \"a\"\nsteps = 3\n[[stage.mixture]]\nname = \"a\"", "/stage/0/mixture/0/data: required"),
        ("[cluster]\ncontrol.ports = [1]", "/cluster/control/ports: [1] is not of minItems 2"),
        ("[cluster]\ncontrol.ports = [1, 65536]", "/cluster/control/ports/1: 65536 is not of maximum 65535"),
    ] {
        let found = errors(text);
        assert!(found.contains(words), "{text}: {found}");
    }
}

#[test]
fn token_budgets_are_numbers_or_auto() {
    let stage =
        |value| errors(&format!("[[stage]]\nname = \"a\"\ndata = \"d\"\nsteps = 3\nmicro_batch_tokens = {value}"));
    assert_eq!(["512", "\"auto\""].map(stage), ["", ""]);
    for wrong in ["0", "1.5", "\"much\"", "true"] {
        assert!(stage(wrong).contains("/stage/0/micro_batch_tokens"), "{wrong}: {}", stage(wrong));
    }
}

#[test]
fn keys_that_the_schema_requires_are_required() {
    let missing = |error: ConfigError| error.to_string();
    let run = missing(Layers::default().parse::<RunConfig>("[[stage]]", "run.toml").unwrap_err());
    let prep = missing(Layers::default().parse::<PrepConfig>("[[source]]", "prep.toml").unwrap_err());
    for key in ["stage.0.name", "stage.0.data", "stage.0.steps"] {
        assert!(run.contains(key), "{key}: {run}");
    }
    for key in ["source.0.path", "output.url", "vocabulary.file"] {
        assert!(prep.contains(key), "{key}: {prep}");
    }
}
