//! JSON lines. Each line is an object with the text in one of its fields.

mod field;

use std::borrow::Cow;

use lambert_config::prep::{Damaged, Documents, Invalid, Source};

use self::field::FieldValue;
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
        &["field", "encoding"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["jsonl", "ndjson", "json"]
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
    match field::check_object(&line[..end.unwrap_or(line.len())]) {
        Ok(()) => true,
        // If `head` ends within the first line, the start of an object with a key suffices.
        Err(error) => end.is_none() && error.is_eof() && has_key(line),
    }
}

/// True if `head` is an array of objects, or an object of several lines, or the start of one.
fn is_other_json(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    let object = text.strip_prefix(b"[").map_or(text, <[u8]>::trim_ascii_start);
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde::de::IgnoredAny>();
    object.starts_with(b"{")
        && has_key(object)
        && values.next().is_some_and(|value| value.map_or_else(|error| error.is_eof(), |_| true))
}

/// True if a colon follows a quotation mark.
fn has_key(json: &[u8]) -> bool {
    memchr::memchr_iter(b':', json).any(|colon| json[..colon].trim_ascii_end().ends_with(b"\""))
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

    /// Returns the text of `line`, which starts at byte `at`. Returns `None` if it is null.
    fn text(&mut self, line: &[u8], at: u64) -> Result<Option<String>, SourceError> {
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
        let expected = match field::read(&json, &self.field) {
            Ok(FieldValue::Text(text)) => return Ok(Some(text)),
            Ok(FieldValue::Null) => {
                self.notices.push(SkipNotice::new("jsonl: row without text", at));
                return Ok(None);
            }
            Ok(FieldValue::LoneSurrogates(text)) if self.invalid == Invalid::Replace => {
                self.notices.push(SkipNotice::new(INVALID_REPLACED, at));
                return Ok(Some(text));
            }
            Ok(FieldValue::LoneSurrogates(_)) => format!(
                "{:?} on this line without lone surrogates (such as \\ud83d); invalid = \"replace\" replaces them",
                self.field
            ),
            Ok(FieldValue::Other) => format!("a JSON object with a string in {:?} on this line", self.field),
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
                Ok(Some(text)) => return Ok(Some((at, text.into_bytes()))),
                Ok(None) => {}
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

    #[test]
    fn json_objects_are_distinguished_from_other_braces() {
        let is = |text: &[u8]| JsonlFormat.recognizes(FileHead::Text(text));
        assert!(is(b"{\"text\": \"a\"}\n{\"text\": 3}\n") && is(b"{\"text\": \"a very long line that is cut"));
        assert!(is(b"{\"score\": NaN, \"x\": \"\\ud800\"}\n") && is(b"{ \"text\" : \"a very long line that is cut"));
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
