//! Strict deserialization of the merged tree. Every value that cannot be parsed becomes a separate issue.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::{ConfigIssue, MAX_ISSUES};

/// Removes the value at `path`. Returns `false` if there is no value.
fn remove(node: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    match node {
        Value::Table(table) if rest.is_empty() => table.remove(first).is_some(),
        Value::Table(table) => {
            let Some(child) = table.get_mut(first) else { return false };
            let plain = child.as_array().is_some_and(|items| !items.iter().any(Value::is_table));
            if plain {
                // A list of plain values is removed as a whole, because a single element has no default.
                table.remove(first);
                return true;
            }
            remove(child, rest)
        }
        Value::Array(items) => match first.parse::<usize>() {
            Ok(index) if index < items.len() && !rest.is_empty() => remove(&mut items[index], rest),
            // A section in a list is emptied but not removed, so that the indices of the other sections stay the same.
            Ok(index) if index < items.len() && items[index] != Value::Table(Table::new()) => {
                items[index] = Value::Table(Table::new());
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Deserializes `tree`. A value that cannot be parsed becomes an issue, and the key takes its default value. Each issue needs
/// another pass over the tree, so this function stops after more than [`MAX_ISSUES`].
pub fn read_all<T: DeserializeOwned>(mut tree: Value, issues: &mut Vec<ConfigIssue>) -> Option<T> {
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
        issues.push(ConfigIssue::new(path.join("."), message));
        if issues.len() > MAX_ISSUES || !remove(&mut tree, &path) {
            return None;
        }
    }
}

fn unknown_field(message: &str) -> Option<String> {
    Some(message.strip_prefix("unknown field `")?.split('`').next()?.to_owned())
}
