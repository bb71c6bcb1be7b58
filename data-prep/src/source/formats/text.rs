//! Running text: a file is a document, or blank lines separate documents.

use lambert_config::prep::Documents;

use crate::extract::Extractor;
use crate::source::format::{Head, InputFile, InputFormat, Registry};
use crate::source::lines::{End, LONGEST, Lines};
use crate::source::{DocumentReader, Note, Notes, RawDocument, SourceError, Stored};

/// The format `text`.
pub struct Text;

impl InputFormat for Text {
    fn name(&self) -> &'static str {
        "text"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::File, Documents::BlankLine]
    }

    /// Nothing shows that a file is running text: the registry falls back on it.
    fn recognizes(&self, _head: Head<'_>) -> bool {
        false
    }

    fn refusal(&self, head: &[u8], formats: Registry) -> Option<String> {
        formats.look_alike(Head::Text(head))
    }

    fn extractor(&self, _file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(Extractor::running_text())
    }

    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError> {
        let blank_lines = self.documents_of(file.source) == Documents::BlankLine;
        Ok(Box::new(TextDocuments::open(file, stored, blank_lines)?))
    }
}

/// Documents of lines.
pub struct TextDocuments {
    lines: Lines,
    ordinal: u32,
    blank_lines: bool,
    notes: Notes,
}

impl TextDocuments {
    /// The file is a document, or with `blank_lines` what stands between blank lines.
    pub fn open(file: &InputFile<'_>, stored: Stored, blank_lines: bool) -> Result<Self, SourceError> {
        let lines = Lines::new(Box::new(file.text(stored)?), &file.file.name);
        Ok(Self { lines, ordinal: 0, blank_lines, notes: Notes::new() })
    }
}

impl DocumentReader for TextDocuments {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let mut at = self.lines.at();
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            match self.lines.next(&mut bytes)? {
                End::File => break,
                End::Gap(what) => {
                    self.notes.push(Note::new(what, self.lines.at()));
                    // What is behind the gap is another document.
                    if before > 0 {
                        break;
                    }
                    at = self.lines.at();
                    continue;
                }
                End::Line | End::TooLong(_) => {}
            }
            if self.blank_lines && bytes[before..].iter().all(u8::is_ascii_whitespace) {
                bytes.truncate(before);
                if before > 0 {
                    break;
                }
                at = self.lines.at();
            }
            if bytes.len() >= LONGEST {
                self.notes.push(Note::new("text: document of over 16 MiB divided", self.lines.at()));
                break;
            }
        }
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok((!bytes.is_empty()).then_some(RawDocument { ordinal, at, bytes }))
    }

    fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}
