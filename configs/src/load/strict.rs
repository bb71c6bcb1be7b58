//! The strict pass over the merged tree: each value that cannot be read is a fault of its own.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::Fault;

/// Takes out what stands at `path`; `false` if nothing does.
fn remove(node: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    match node {
        Value::Table(table) if rest.is_empty() => table.remove(first).is_some(),
        Value::Table(table) => {
            let Some(child) = table.get_mut(first) else { return false };
            let plain = child.as_array().is_some_and(|items| !items.iter().any(Value::is_table));
            if plain {
                // A list of values goes as a whole: there is nothing that could stand in the place of one.
                table.remove(first);
                return true;
            }
            remove(child, rest)
        }
        Value::Array(items) => match first.parse::<usize>() {
            Ok(index) if index < items.len() && !rest.is_empty() => remove(&mut items[index], rest),
            // An element is emptied, not taken out, so that the numbers of the others stay.
            Ok(index) if index < items.len() && items[index] != Value::Table(Table::new()) => {
                items[index] = Value::Table(Table::new());
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Reads `tree` as `T`; each value that cannot be read becomes a fault and is left at its default.
pub fn read_all<T: DeserializeOwned>(mut tree: Value, faults: &mut Vec<Fault>) -> Option<T> {
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
        faults.push(Fault::new(path.join("."), message));
        if !remove(&mut tree, &path) {
            return None;
        }
    }
}

fn unknown_field(message: &str) -> Option<String> {
    Some(message.strip_prefix("unknown field `")?.split('`').next()?.to_owned())
}
