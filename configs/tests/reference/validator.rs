//! Validator for the part of JSON Schema that the schemas use. The tests do not use the crate jsonschema, because it
//! enables features of serde_json that change how the tests of all crates parse floats.

use serde_json::Value;

use super::shipped::resolve;

/// Returns the errors of `value`, each with its path.
pub fn errors(schema: &Value, value: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(schema, schema, value, "", &mut errors);
    errors
}

/// Checks `value` at `path` against a node of the schema `root`.
fn check(root: &Value, node: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    for (keyword, expected) in node.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" => {}
            "$ref" => check(root, resolve(root, node), value, path, errors),
            "oneOf" | "anyOf" => {
                let fits = |choice: &&Value| {
                    let mut errors = Vec::new();
                    check(root, choice, value, path, &mut errors);
                    errors.is_empty()
                };
                let count = expected.as_array().unwrap().iter().filter(fits).count();
                if count == 0 || (keyword == "oneOf" && count > 1) {
                    errors.push(format!("{path}: {value} fits {count} of {keyword}"));
                }
            }
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    if let Some(property) = expected.get(key) {
                        check(root, property, value, &format!("{path}/{key}"), errors);
                    }
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, expected, item, &format!("{path}/{index}"), errors);
                }
            }
            "additionalProperties" => {
                assert_eq!(expected, false);
                let keys = value.as_object().into_iter().flat_map(|keys| keys.keys());
                let unknown = keys.filter(|key| node["properties"].get(key.as_str()).is_none());
                errors.extend(unknown.map(|key| format!("{path}/{key}: unknown key")));
            }
            "required" => {
                let keys = expected.as_array().unwrap().iter().filter_map(Value::as_str);
                let missing = keys.filter(|key| value.is_object() && value.get(key).is_none());
                errors.extend(missing.map(|key| format!("{path}/{key}: required")));
            }
            _ if satisfies(keyword, expected, value) => {}
            _ => errors.push(format!("{path}: {value} is not of {keyword} {expected}")),
        }
    }
}

/// Returns false if `value` violates a keyword about a single value.
fn satisfies(keyword: &str, expected: &Value, value: &Value) -> bool {
    let compare = |value: f64, is_valid: fn(&f64, &f64) -> bool| is_valid(&value, &expected.as_f64().unwrap());
    let length = value.as_array().map(|items| items.len() as f64);
    match keyword {
        "const" => value == expected,
        "minimum" => value.as_f64().is_none_or(|value| compare(value, f64::ge)),
        "maximum" => value.as_f64().is_none_or(|value| compare(value, f64::le)),
        "minItems" => length.is_none_or(|length| compare(length, f64::ge)),
        "maxItems" => length.is_none_or(|length| compare(length, f64::le)),
        "type" => match expected.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("the type {other}"),
        },
        _ => panic!("the keyword {keyword}"),
    }
}
