//! Tables of docs/reference/configuration.md and preparation.md. There is one table per section of a file. A line such as
//! `<!-- generated: run.model -->`, which contains the name of the section, precedes each table. The line
//! `<!-- end -->` follows it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::shipped::resolve;
use super::{compare_or_write, repository, schema};

/// Pages of the two files.
const PAGES: [(&str, &str); 2] =
    [("run", "docs/reference/configuration.md"), ("prep", "docs/reference/preparation.md")];

/// Sections without their own table. [slurm] in a preparation file has the same keys as [slurm] in a run file, and
/// [[exclude]] has the same keys as [[source]].
const SHARED: [&str; 2] = ["prep.slurm", "prep.exclude"];

/// Maximum length of the description in a cell, in characters. Further paragraphs of a doc comment follow below the
/// table.
const CELL: usize = 120;

#[test]
fn tables_are_up_to_date() {
    for ((file, page), root) in PAGES.into_iter().zip([schema::run(), schema::prep()]) {
        let mut tables = BTreeMap::new();
        for (key, property) in root["properties"].as_object().unwrap() {
            collect(&root, property, &format!("{file}.{key}"), &mut tables);
        }
        tables.retain(|section, _| !SHARED.contains(&section.as_str()));
        let old = std::fs::read_to_string(repository(page)).unwrap();
        let mut parts = old.split("<!-- generated: ");
        let mut text = parts.next().unwrap().to_owned();
        for part in parts {
            let (name, rest) = part.split_once(" -->").unwrap();
            let (_, rest) = rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{page}: {name} has no end"));
            let table =
                tables.remove(name).unwrap_or_else(|| panic!("{page}: {name} is no section, or stands there twice"));
            text += &format!("<!-- generated: {name} -->\n\n{table}\n<!-- end -->{rest}");
        }
        assert!(tables.is_empty(), "{page} lacks {:?}", tables.keys());
        compare_or_write(page, &text);
    }
}

/// Collects the tables of a section and of the sections in it, by path.
fn collect(root: &Value, node: &Value, path: &str, tables: &mut BTreeMap<String, String>) {
    let node = section(root, node);
    let Some(properties) = node["properties"].as_object() else { return };
    tables.insert(path.to_owned(), table(root, path, properties));
    for (key, property) in properties {
        collect(root, property, &format!("{path}.{key}"), tables);
    }
}

/// Follows a reference to a section. For a list, follows the reference to its elements.
fn section<'a>(root: &'a Value, node: &'a Value) -> &'a Value {
    let node = resolve(root, node);
    if node["items"].is_object() { resolve(root, &node["items"]) } else { node }
}

/// Renders the table of a section. Below the table are the descriptions that do not fit into its cells.
fn table(root: &Value, path: &str, properties: &Map<String, Value>) -> String {
    let mut text = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for (key, property) in properties {
        let (mut meaning, _) = description(property);
        assert!(
            meaning.ends_with('.') && meaning.chars().count() <= CELL,
            "{path}.{key}: {meaning:?}: a sentence of {CELL}"
        );
        if section(root, property)["properties"].is_object() {
            let (_, name) = path.split_once('.').unwrap();
            let (name, anchor) = (format!("{name}.{key}"), format!("{name}{key}").replace('.', ""));
            meaning = format!("{}: [{name}](#{anchor}).", meaning.trim_end_matches('.'));
        }
        let default = property.get("default").map_or("–".to_owned(), |default| format!("`{default}`"));
        text += &format!("| `{key}` | {} | {default} | {meaning} |\n", type_name(root, property));
    }
    properties.iter().for_each(|(key, property)| text += &note(root, key, property));
    text
}

/// Splits the description of a key into its first paragraph and the others.
fn description(property: &Value) -> (String, Option<String>) {
    let text = property["description"].as_str().unwrap();
    let (first, more) = text.split_once("\n\n").map_or((text, None), |(first, more)| (first, Some(more)));
    (first.replace('|', "\\|"), more.map(str::to_owned))
}

/// Renders the further paragraphs of a key, and the meaning of its values.
fn note(root: &Value, key: &str, property: &Value) -> String {
    let (_, more) = description(property);
    let property = resolve(root, property);
    let choices = if property["items"].is_object() { resolve(root, &property["items"]) } else { property };
    let values = choices["oneOf"].as_array();
    let values = values
        .into_iter()
        .flatten()
        .filter_map(|value| Some((value["const"].as_str()?, value["description"].as_str()?)));
    let values: String = values.map(|(value, meaning)| format!("- `{value}`: {meaning}\n")).collect();
    match (more, values.as_str()) {
        (None, "") => String::new(),
        (None, values) => format!("\n`{key}`:\n\n{values}"),
        (Some(more), "") => format!("\n`{key}`: {more}\n"),
        (Some(more), values) => format!("\n`{key}`: {more}\n\n{values}"),
    }
}

/// Returns the type of a key, or its values.
fn type_name(root: &Value, node: &Value) -> String {
    let node = resolve(root, node);
    let names = |nodes: &Value, separator: &str| {
        let names = nodes.as_array().unwrap().iter().map(|node| type_name(root, node));
        names.collect::<Vec<_>>().join(separator)
    };
    match node["type"].as_str() {
        _ if node["const"].is_string() => format!("`{}`", node["const"]),
        _ if node["oneOf"].is_array() => names(&node["oneOf"], ", "),
        _ if node["anyOf"].is_array() => names(&node["anyOf"], " or "),
        Some("object") => "section".to_owned(),
        Some("array") => {
            let is_choice = resolve(root, &node["items"])["oneOf"].is_array();
            let item = if is_choice { "string".to_owned() } else { type_name(root, &node["items"]) };
            let items = if item.starts_with("list") { item.replacen("list", "lists", 1) } else { item + "s" };
            node["maxItems"].as_u64().map_or(format!("list of {items}"), |count| format!("list of {count} {items}"))
        }
        Some(name) => name.to_owned(),
        None => panic!("a type without a name: {node}"),
    }
}
