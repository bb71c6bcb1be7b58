//! JSON lines: an object a line, one of whose fields holds the text.

use lambert_config::prep::{Damaged, Documents};
use memchr::memmem;

use crate::extract::Extractor;
use crate::source::format::{Head, InputFile, InputFormat};
use crate::source::lines::{End, Lines};
use crate::source::rows::{self, RowDocuments, Rows};
use crate::source::{DocumentReader, Note, Notes, SourceError, Stored};

/// The format `jsonl`.
pub struct JsonLines;

impl InputFormat for JsonLines {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn documents(&self) -> &'static [Documents] {
        rows::DOCUMENTS
    }

    fn options(&self) -> &'static [&'static str] {
        &["field"]
    }

    fn recognizes(&self, head: Head<'_>) -> bool {
        matches!(head, Head::Text(text) if begins_with_object(text))
    }

    fn extractor(&self, file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(rows::extractor(self.documents_of(file.source)))
    }

    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError> {
        let lines = Lines::whole(Box::new(file.text(stored)?), &file.file.name);
        let rows = Objects::new(lines, file.source.field.clone(), file.source.damaged);
        Ok(Box::new(RowDocuments::new(rows, self.documents_of(file.source))))
    }
}

/// Tells whether the first line is a JSON object, or what can be seen of one.
fn begins_with_object(head: &[u8]) -> bool {
    let line = head.trim_ascii_start();
    let end = memchr::memchr(b'\n', line);
    match serde_json::from_slice::<serde_json::Map<_, _>>(&line[..end.unwrap_or(line.len())]) {
        Ok(_) => true,
        // Cut where the head ends; that it began as an object with a name is enough.
        Err(error) => end.is_none() && error.is_eof() && memmem::find(line, b"\":").is_some(),
    }
}

/// The texts of a file's objects.
struct Objects {
    lines: Lines,
    field: String,
    damaged: Damaged,
    notes: Notes,
}

impl Objects {
    /// The text is in `field` of each object.
    const fn new(lines: Lines, field: String, damaged: Damaged) -> Self {
        Self { lines, field, damaged, notes: Notes::new() }
    }

    fn text(&self, line: &[u8]) -> Result<String, String> {
        let value: serde_json::Value =
            serde_json::from_slice(line).map_err(|error| format!("a JSON object on this line ({error})"))?;
        match value.get(&self.field) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            _ => Err(format!("a JSON object with a string in {:?} on this line", self.field)),
        }
    }
}

impl Rows for Objects {
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let at = self.lines.at();
            match self.lines.next(&mut line)? {
                End::File => return Ok(None),
                End::Gap(what) => {
                    self.notes.push(Note::new(what, at));
                    continue;
                }
                End::TooLong(_) if self.damaged == Damaged::Skip => {
                    self.notes.push(Note::new("jsonl: line of over 256 MiB", at));
                    continue;
                }
                End::TooLong(most) => {
                    let expected = format!("a line of at most {} MiB", most >> 20);
                    return Err(SourceError::Format { file: self.lines.name().to_owned(), at, expected });
                }
                End::Line => {}
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match self.text(&line) {
                Ok(text) => return Ok(Some((at, text.into_bytes()))),
                Err(_) if self.damaged == Damaged::Skip => self.notes.push(Note::new("jsonl: bad line", at)),
                Err(expected) => {
                    return Err(SourceError::Format { file: self.lines.name().to_owned(), at, expected });
                }
            }
        }
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_from_other_braces() {
        let is = |text: &[u8]| JsonLines.recognizes(Head::Text(text));
        assert!(is(b"{\"text\": \"a\"}\n{\"text\": 3}\n") && is(b"{\"text\": \"a very long line that is cut"));
        assert!(!is(b"{{Infobox}} is a template.") && !is(b"{ braces } are no JSON\n"));
        assert!(!JsonLines.recognizes(Head::Stored(b"{\"text\": \"a\"}\n")));
    }
}
