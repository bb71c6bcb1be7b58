//! A field of a JSON object. The other fields are skipped.

use std::fmt::Formatter;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Value of a field.
#[derive(Debug, PartialEq)]
pub enum FieldValue {
    Text(String),
    /// A text with lone surrogates, such as `\ud83d`, each replaced by U+FFFD.
    LoneSurrogates(String),
    /// The value is null, NaN or `{}`, or an object around it is null.
    Null,
    /// There is no such field, or its value is not a string.
    Other,
}

/// Reads a field of the object `json`. If there is no field of this name, the part of the name before a dot is the name
/// of an object with the field. If the field occurs more than once, the last one counts.
///
/// # Errors
/// `json` is not JSON. NaN and infinite numbers, which Python writes, are permitted.
pub fn read(json: &str, field: &str) -> serde_json::Result<FieldValue> {
    let part = Part::Object { field, keep_surrogates: false };
    let error = match parse(json.as_bytes(), part) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let repaired = without_infinite_numbers(json.as_bytes());
    match repaired.as_ref().map(|json| parse(json, part)) {
        Some(Ok(value)) => Ok(value),
        other => {
            match parse(repaired.as_deref().unwrap_or(json.as_bytes()), Part::Object { field, keep_surrogates: true }) {
                Ok(value @ FieldValue::LoneSurrogates(_)) => Ok(value),
                _ => Err(other.and_then(Result::err).unwrap_or(error)),
            }
        }
    }
}

/// Checks that `json` is an object that [`read`] accepts.
///
/// # Errors
/// `json` is not an object.
pub fn check_object(json: &[u8]) -> serde_json::Result<()> {
    let repaired = without_infinite_numbers(json);
    serde_json::from_slice::<Object>(repaired.as_deref().unwrap_or(json)).map(|Object(_)| ())
}

/// An object with any fields.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Object(#[allow(dead_code, reason = "only its syntax is checked")] std::collections::HashMap<String, IgnoredAny>);

fn parse(json: &[u8], part: Part<'_>) -> serde_json::Result<FieldValue> {
    let mut input = serde_json::Deserializer::from_slice(json);
    let value = part.deserialize(&mut input)?;
    input.end().map(|()| value)
}

/// Replaces the numbers NaN, Infinity and -Infinity, which are not JSON, by `{}` and spaces, so that the columns of errors
/// stay. Returns `None` if there are none.
fn without_infinite_numbers(json: &[u8]) -> Option<Vec<u8>> {
    let mut json = json.to_vec();
    let (mut at, mut is_in_string, mut found) = (0, false, false);
    while at < json.len() {
        match json[at] {
            b'\\' if is_in_string => at += 1,
            b'"' => is_in_string = !is_in_string,
            b'N' | b'I' if !is_in_string => {
                let name = [&b"NaN"[..], b"Infinity"].into_iter().find(|name| json[at..].starts_with(name));
                if let Some(name) = name {
                    let sign = usize::from(name[0] == b'I' && at > 0 && json[at - 1] == b'-');
                    json[at - sign..at + name.len()].fill(b' ');
                    json[at - sign..at - sign + 2].copy_from_slice(b"{}");
                    found = true;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found.then_some(json)
}

/// Part of a line.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// An object with this field.
    Object { field: &'a str, keep_surrogates: bool },
    /// The value of the field.
    Value { keep_surrogates: bool },
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<FieldValue, D::Error> {
        match self {
            // As bytes, a string may have half characters.
            Self::Value { keep_surrogates: true } => input.deserialize_bytes(self),
            _ => input.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = FieldValue;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<FieldValue, E> {
        Ok(match self {
            Self::Object { .. } => FieldValue::Other,
            Self::Value { .. } => FieldValue::Text(text.to_owned()),
        })
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<FieldValue, E> {
        let (mut bytes, mut has_surrogates) = (bytes.to_vec(), false);
        // U+D800 to U+DFFF have the first byte 0xed and a second byte of at least 0xa0.
        for at in 0..bytes.len().saturating_sub(2) {
            if bytes[at] == 0xed && bytes[at + 1] >= 0xa0 {
                bytes[at..at + 3].copy_from_slice("\u{fffd}".as_bytes());
                has_surrogates = true;
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(if has_surrogates { FieldValue::LoneSurrogates(text) } else { FieldValue::Text(text) })
    }

    fn visit_bool<E>(self, _: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<FieldValue, E> {
        Ok(FieldValue::Other)
    }

    fn visit_unit<E>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<FieldValue, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FieldValue::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<FieldValue, A::Error> {
        let Self::Object { field, keep_surrogates } = self else {
            let mut value = FieldValue::Null;
            while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                value = FieldValue::Other;
            }
            return Ok(value);
        };
        let (mut value, mut inner) = (None, FieldValue::Other);
        while let Some(name) = fields.next_key::<String>()? {
            if name == field {
                value = Some(fields.next_value_seed(Part::Value { keep_surrogates })?);
            } else if let Some(field) = field.strip_prefix(&name).and_then(|rest| rest.strip_prefix('.')) {
                inner = fields.next_value_seed(Part::Object { field, keep_surrogates })?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(value.unwrap_or(inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<FieldValue> {
        Some(FieldValue::Text(text.to_owned()))
    }

    #[test]
    fn the_field_of_a_line_is_read_whatever_the_others_are() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let half = |text: &str| Some(FieldValue::LoneSurrogates(text.to_owned()));
        for (json, expected) in [
            (r#"{"text": "a", "x": [1, -2, 3.5, true, null, {"text": "b"}], "y": "\u00e9"}"#, text("a")),
            (r#"{"x": {"text": "b"}, "te\u0078t": "a\n\ud83d\ude00"}"#, text("a\n😀")),
            (r#"{"text": "a", "text": "b"}"#, text("b")),
            (r#"{"text": "a", "text": 3}"#, Some(FieldValue::Other)),
            (r#"{"text": 3, "text": "a"}"#, text("a")),
            (r#"{"text": ["a"]}"#, Some(FieldValue::Other)),
            (r#"{"text": {"text": "a"}}"#, Some(FieldValue::Other)),
            (r#"{"text": null, "x": 1}"#, Some(FieldValue::Null)),
            (r#"[{"text": "a"}]"#, Some(FieldValue::Other)),
            (r#""text""#, Some(FieldValue::Other)),
            ("17", Some(FieldValue::Other)),
            ("{}", Some(FieldValue::Other)),
            // What Python writes, and what many writers do not check.
            (r#"{"a": NaN, "b": [-Infinity, Infinity], "text": "NaN \" Infinity"}"#, text("NaN \" Infinity")),
            (r#"{"text": NaN}"#, Some(FieldValue::Null)),
            (r#"{"text": {}}"#, Some(FieldValue::Null)),
            (r#"{"text": "a", "x": 1e999}"#, text("a")),
            (r#"{"text": "a", "x": "\ud800"}"#, text("a")),
            (&format!(r#"{{"text": "a", "x": {deep}}}"#), text("a")),
            (r#"{"text": "\ud83d and \udc00é"}"#, half("\u{fffd} and \u{fffd}é")),
            (r#"{"x": NaN, "text": "\ud83d"}"#, half("\u{fffd}")),
            // What is not JSON.
            ("", None),
            (r#"{"text": "a"} {"#, None),
            (r#"{"text": "a", "x": 01}"#, None),
            (r#"{"text": "a", 3: 4}"#, None),
            (r#"{"text": "a", "x": nul}"#, None),
            (r#"{"text": "a", "x": NaNs}"#, None),
            (r#"{"text": "a", "x": 1NaN}"#, None),
            (r#"{"text": "a", "x": -NaN}"#, None),
            (r#"{"text": "a""#, None),
            ("{\"text\": \"a\tb\"}", None),
        ] {
            assert_eq!(read(json, "text").ok(), expected, "{json}");
        }
    }

    #[test]
    fn a_dot_leads_into_an_object() {
        let json =
            r#"{"a": {"b": {"c": "inner"}, "text": null}, "a.b": {"c": 1}, "d": null, "e.f": "name", "e": {"f": "x"}}"#;
        for (field, expected) in [
            ("a.text", FieldValue::Null),
            ("a.b", FieldValue::Other),
            ("d.text", FieldValue::Null),
            ("e.f", FieldValue::Text("name".to_owned())),
            ("e.g", FieldValue::Other),
            ("a", FieldValue::Other),
        ] {
            assert_eq!(read(json, field).unwrap(), expected, "{field}");
        }
        let nested = r#"{"a": {"b": {"c": "inner"}}}"#;
        assert_eq!(read(nested, "a.b.c").unwrap(), FieldValue::Text("inner".to_owned()));
    }

    #[test]
    fn an_error_has_the_column_of_the_line() {
        let error = read(r#"{"a": NaN, "b": ?}"#, "text").unwrap_err();
        assert_eq!((error.line(), error.column()), (1, 17), "{error}");
    }
}
