//! JSON lines. Each line is an object with the text in one of its fields.

use std::borrow::Cow;
use std::fmt::Formatter;

use lambert_config::prep::{Damaged, Documents, Invalid, Source};
use memchr::memmem;
use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use crate::extract::Extractor;
use crate::source::format::{FileHead, InputFile, InputFormat};
use crate::source::lines::{LineEnd, Lines};
use crate::source::rows::{self, RowDocuments, RowReader};
use crate::source::{DocumentReader, INVALID_REPLACED, SkipNotice, SkipNotices, SourceError, StoredReader};

/// The format `jsonl`.
pub struct JsonlFormat;

impl InputFormat for JsonlFormat {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn documents(&self) -> &'static [Documents] {
        rows::DOCUMENTS
    }

    fn options(&self) -> &'static [&'static str] {
        &["field"]
    }

    fn recognizes(&self, head: FileHead<'_>) -> bool {
        matches!(head, FileHead::Text(text) if begins_with_object(text))
    }

    fn unreadable_variant(&self, head: &[u8]) -> Option<&'static str> {
        is_other_json(head)
            .then_some("JSON that is not one object per line; convert it, for example with `jq -c '.[]'` for an array")
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(rows::extractor(self.documents_of(file.source)))
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        let lines = Lines::whole(Box::new(file.text(stored)?), &file.file.name);
        let rows = JsonlRows::new(lines, file.source);
        Ok(Box::new(RowDocuments::new(rows, self.documents_of(file.source))))
    }
}

/// True if the first line is a JSON object or the start of a JSON object.
fn begins_with_object(head: &[u8]) -> bool {
    let line = head.trim_ascii_start();
    let end = memchr::memchr(b'\n', line);
    match serde_json::from_slice::<serde_json::Map<_, _>>(&line[..end.unwrap_or(line.len())]) {
        Ok(_) => true,
        // If `head` ends within the first line, the start of an object with a key suffices.
        Err(error) => end.is_none() && error.is_eof() && memmem::find(line, b"\":").is_some(),
    }
}

/// True if `head` is an array of objects, or an object of several lines, or the start of one.
fn is_other_json(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    let object = text.strip_prefix(b"[").map_or(text, <[u8]>::trim_ascii_start);
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde::de::IgnoredAny>();
    object.starts_with(b"{")
        && memmem::find(object, b"\":").is_some()
        && values.next().is_some_and(|value| value.map_or_else(|error| error.is_eof(), |_| true))
}

/// Returns the string in a field of the object `json`, without memory for its other fields. If the field occurs more than
/// once, the last one counts.
fn string_field(json: &str, field: &str) -> serde_json::Result<Option<String>> {
    let mut input = serde_json::Deserializer::from_str(json);
    let text = Part::Object(field).deserialize(&mut input)?;
    input.end().map(|()| text)
}

/// Part of a line. Other parts than the field are checked like a [`serde_json::Value`], which `IgnoredAny` is not: numbers
/// have a range, and escapes are characters.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// The object with this field.
    Object(&'a str),
    /// The value of the field.
    Field,
    Other,
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(matches!(self, Self::Field).then(|| text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element_seed(Part::Other)?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(name) = fields.next_key::<String>()? {
            if matches!(self, Self::Object(field) if field == name) {
                text = fields.next_value_seed(Part::Field)?;
            } else {
                fields.next_value_seed(Part::Other)?;
            }
        }
        Ok(text)
    }
}

/// Reads the text field of each object.
struct JsonlRows {
    lines: Lines,
    field: String,
    damaged: Damaged,
    invalid: Invalid,
    notices: SkipNotices,
}

impl JsonlRows {
    /// Reads the text of each object, as the settings of `source` require.
    fn new(lines: Lines, source: &Source) -> Self {
        let (field, damaged, invalid) = (source.field.clone(), source.damaged, source.invalid);
        Self { lines, field, damaged, invalid, notices: SkipNotices::new() }
    }

    /// Returns the text of `line`, which starts at byte `at`.
    fn text(&mut self, line: &[u8], at: u64) -> Result<String, SourceError> {
        let file = || self.lines.name().to_owned();
        let json = match (std::str::from_utf8(line), self.invalid) {
            (Ok(json), _) => Cow::Borrowed(json),
            (Err(_), Invalid::Replace) => {
                self.notices.push(SkipNotice::new(INVALID_REPLACED, at));
                String::from_utf8_lossy(line)
            }
            (Err(error), Invalid::Refuse) => {
                return Err(SourceError::NotUtf8 { file: file(), offset: at + error.valid_up_to() as u64 });
            }
        };
        let expected = match string_field(&json, &self.field) {
            Ok(Some(text)) => return Ok(text),
            Ok(None) => format!("a JSON object with a string in {:?} on this line", self.field),
            Err(error) => format!("a JSON object on this line ({error})"),
        };
        Err(SourceError::Format { file: file(), offset: at, expected })
    }
}

impl RowReader for JsonlRows {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let at = self.lines.offset();
            match self.lines.next(&mut line)? {
                LineEnd::File => return Ok(None),
                LineEnd::Gap(reason) => {
                    self.notices.push(SkipNotice::new(reason, at));
                    continue;
                }
                LineEnd::TooLong(_) if self.damaged == Damaged::Skip => {
                    self.notices.push(SkipNotice::new("jsonl: line of over 256 MiB", at));
                    continue;
                }
                LineEnd::TooLong(most) => {
                    let expected = format!("a line of at most {} MiB", most >> 20);
                    return Err(SourceError::Format { file: self.lines.name().to_owned(), offset: at, expected });
                }
                LineEnd::Line => {}
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.text(&line, at) {
                Ok(text) => return Ok(Some((at, text.into_bytes()))),
                Err(_) if self.damaged == Damaged::Skip => self.notices.push(SkipNotice::new("jsonl: bad line", at)),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_notices(&mut self) -> SkipNotices {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text and the errors are those of a [`serde_json::Value`].
    #[test]
    fn a_field_is_read_like_that_of_a_parsed_line() {
        let (deep, deeper) = ("[".repeat(126) + &"]".repeat(126), "[".repeat(128) + &"]".repeat(128));
        for json in [
            r#"{"text": "a", "x": [1, -2, 3.5, true, null, {"text": "b"}], "y": "\u00e9"}"#,
            r#"{"x": {"text": "b"}, "te\u0078t": "a\n\ud83d\ude00"}"#,
            r#"{"text": "a", "text": "b"}"#,
            r#"{"text": "a", "text": 3}"#,
            r#"{"text": 3, "text": "a"}"#,
            r#"{"text": ["a"]}"#,
            r#"{"text": {"text": "a"}}"#,
            r#"[{"text": "a"}]"#,
            r#""text""#,
            "17",
            "{}",
            "",
            r#"{"text": "a"} {"#,
            r#"{"text": "a", "x": 1e999}"#,
            r#"{"text": "a", "x": "\ud800"}"#,
            r#"{"text": "a", "x": 01}"#,
            r#"{"text": "a", 3: 4}"#,
            r#"{"text": "a", "x": nul}"#,
            r#"{"text": "a""#,
            &format!(r#"{{"text": "a", "x": {deep}}}"#),
            &format!(r#"{{"text": "a", "x": {deeper}}}"#),
        ] {
            let whole = serde_json::from_str::<serde_json::Value>(json).map_err(|error| error.to_string());
            let expected = whole.map(|value| value.get("text").and_then(|text| text.as_str().map(ToOwned::to_owned)));
            assert_eq!(string_field(json, "text").map_err(|error| error.to_string()), expected, "{json}");
        }
    }

    #[test]
    fn json_objects_are_distinguished_from_other_braces() {
        let is = |text: &[u8]| JsonlFormat.recognizes(FileHead::Text(text));
        assert!(is(b"{\"text\": \"a\"}\n{\"text\": 3}\n") && is(b"{\"text\": \"a very long line that is cut"));
        assert!(!is(b"{{Infobox}} is a template.") && !is(b"{ braces } are no JSON\n"));
        assert!(!JsonlFormat.recognizes(FileHead::Stored(b"{\"text\": \"a\"}\n")));
        for json in [
            "[{\"text\": \"a\"}, {\"text\": \"b",
            "[\n  {\n    \"text\": \"a\"\n  }\n]\n",
            "{\n  \"text\": \"a\"\n}\n{\n",
        ] {
            assert!(!is(json.as_bytes()) && JsonlFormat.unreadable_variant(json.as_bytes()).is_some(), "{json}");
        }
        for text in [
            "[1] A note.\n",
            "[{braces}] \"a\": b",
            "{{Infobox}} \"a\": b",
            "[Illustration]",
            "{ \"a\" }\n",
            "\"a\": b",
        ] {
            assert_eq!(JsonlFormat.unreadable_variant(text.as_bytes()), None, "{text}");
        }
    }
}
