//! Checks of the settings of a tokenizer.json.

use serde_json::Value as Json;

/// Rejects all values of a key but one. Null is the default.
pub fn expect(object: &Json, name: &str, key: &str, expected: &Json) -> Result<(), String> {
    match object.get(key) {
        Some(found) if !found.is_null() && found != expected => {
            Err(format!("{name}.{key} is {found}; expected {expected}"))
        }
        _ => Ok(()),
    }
}
