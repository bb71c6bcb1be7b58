//! Lines of step records: the text of a line, and its fields by name. Numbers keep the digits that they have in the
//! text.

use std::fmt;

use lambert_control::StepRecord;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A step record as stored.
#[derive(Debug, Clone)]
pub struct RecordLine {
    /// The line, a JSON object.
    pub text: Box<RawValue>,
    /// Wall-clock time of the step, seconds.
    pub seconds: f64,
}

impl<'de> Deserialize<'de> for RecordLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let record: StepRecord = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self { text, seconds: record.times.seconds })
    }
}

/// Duration of a step record. A line that is not a [`RecordLine`] is also an error.
#[derive(Debug, Clone, Copy)]
pub struct RecordSeconds {
    /// Wall-clock time of the step, seconds.
    pub seconds: f64,
}

impl<'de> Deserialize<'de> for RecordSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RecordLine::deserialize(deserializer).map(|line| Self { seconds: line.seconds })
    }
}

/// Value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// Null: a number that is not finite.
    Null,
    Bool(bool),
    /// Digits of a number.
    Number(String),
    /// A string, or the JSON text of a list or of a deeply nested object.
    Text(String),
}

impl Field {
    /// Returns the `f64` that is nearest to a number. Returns NaN for null, and `None` for other types.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Null => Some(f64::NAN),
            Self::Number(digits) => digits.parse().ok(),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }
}

/// Maximum depth of nested objects. Deeper ones are text.
const DEPTH: usize = 32;

/// Returns the fields of a JSON object, in order. Fields of nested objects have names such as `ranks.min`.
///
/// # Errors
/// `text` is not a JSON object.
pub fn fields(text: &str) -> serde_json::Result<Vec<(String, Field)>> {
    let mut found = Vec::new();
    flatten("", text, DEPTH, &mut found)?;
    Ok(found)
}

fn flatten(prefix: &str, text: &str, depth: usize, found: &mut Vec<(String, Field)>) -> serde_json::Result<()> {
    let Members(members) = serde_json::from_str(text)?;
    for (name, value) in members {
        let (name, value) = (format!("{prefix}{name}"), value.get());
        let field = match value.as_bytes().first() {
            Some(b'{') if depth > 0 => {
                flatten(&format!("{name}."), value, depth - 1, found)?;
                continue;
            }
            Some(b'"') => Field::Text(serde_json::from_str(value)?),
            Some(b'[' | b'{') => Field::Text(value.to_owned()),
            Some(b'n') => Field::Null,
            Some(b't' | b'f') => Field::Bool(value == "true"),
            _ => Field::Number(value.to_owned()),
        };
        found.push((name, field));
    }
    Ok(())
}

/// Members of an object, in order.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_flattened_and_keep_their_digits() {
        let text = r#"{"step":3,"loss":null,"x":0.30000000000000004,"ranks":{"min":1e-7,"in":{"a":true}},"s":"a\"b","l":[1, 2]}"#;
        let number = |digits: &str| Field::Number(digits.into());
        let expected = [
            ("step", number("3")),
            ("loss", Field::Null),
            ("x", number("0.30000000000000004")),
            ("ranks.min", number("1e-7")),
            ("ranks.in.a", Field::Bool(true)),
            ("s", Field::Text("a\"b".into())),
            ("l", Field::Text("[1, 2]".into())),
        ];
        assert_eq!(fields(text).unwrap(), expected.map(|(name, field)| (name.to_owned(), field)));
        assert!(fields("[1]").is_err());
    }

    #[test]
    fn deeply_nested_objects_are_text() {
        let text = "{\"a\":".repeat(40_000) + "1" + &"}".repeat(40_000);
        let found = fields(&text).unwrap();
        assert_eq!((found.len(), found[0].0.len()), (1, 2 * DEPTH + 1));
        assert!(matches!(&found[0].1, Field::Text(text) if text.starts_with("{\"a\":")));
    }

    #[test]
    fn a_line_must_be_a_whole_record() {
        let read = |text: &str| serde_json::from_str::<RecordLine>(text).map(|line| line.seconds);
        let error = read("{\"step\":3}").unwrap_err().to_string();
        assert!(error.contains("missing field"), "{error}");
        let record = StepRecord {
            times: lambert_control::StepTimes { seconds: 2.5, ..Default::default() },
            ..Default::default()
        };
        assert_eq!(read(&serde_json::to_string(&record).unwrap()).unwrap(), 2.5);
    }
}
