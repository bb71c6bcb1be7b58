//! Running text: each file is a document, or blank lines separate documents.

use lambert_config::prep::Documents;

use crate::extract::Extractor;
use crate::source::format::{FileHead, FormatRegistry, InputFile, InputFormat};
use crate::source::lines::{LineEnd, Lines, MAX_LINE_BYTES};
use crate::source::{DocumentReader, RawDocument, SkipNotice, SkipNotices, SourceError, StoredReader};

/// The format `text`.
pub struct TextFormat;

impl InputFormat for TextFormat {
    fn name(&self) -> &'static str {
        "text"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::File, Documents::BlankLine]
    }

    fn options(&self) -> &'static [&'static str] {
        &["encoding"]
    }

    /// Always false, because no first bytes identify running text. This format is the fallback of the registry.
    fn recognizes(&self, _head: FileHead<'_>) -> bool {
        false
    }

    fn refusal(&self, name: &str, head: &[u8], formats: FormatRegistry) -> Option<String> {
        formats.likely_format(FileHead::Text(head)).or_else(|| formats.format_by_name(name, head))
    }

    fn extractor(&self, _file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(Extractor::running_text())
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        let has_blank_line_separators = self.documents_of(file.source) == Documents::BlankLine;
        Ok(Box::new(TextDocuments::open(file, stored, has_blank_line_separators)?))
    }
}

/// Reader of documents that consist of lines.
pub struct TextDocuments {
    lines: Lines,
    ordinal: u32,
    has_blank_line_separators: bool,
    notices: SkipNotices,
}

impl TextDocuments {
    /// Reads the file as one document, or as several documents separated by blank lines.
    pub fn open(
        file: &InputFile<'_>,
        stored: StoredReader,
        has_blank_line_separators: bool,
    ) -> Result<Self, SourceError> {
        let lines = Lines::new(Box::new(file.text(stored)?), &file.file.name);
        Ok(Self { lines, ordinal: 0, has_blank_line_separators, notices: SkipNotices::new() })
    }
}

impl DocumentReader for TextDocuments {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let mut at = self.lines.offset();
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            match self.lines.next(&mut bytes)? {
                LineEnd::File => break,
                LineEnd::Gap(reason) => {
                    self.notices.push(SkipNotice::new(reason, self.lines.offset()));
                    // The text after the gap belongs to another document.
                    if before > 0 {
                        break;
                    }
                    at = self.lines.offset();
                    continue;
                }
                LineEnd::Line | LineEnd::TooLong(_) => {}
            }
            if self.has_blank_line_separators && bytes[before..].iter().all(u8::is_ascii_whitespace) {
                bytes.truncate(before);
                if before > 0 {
                    break;
                }
                at = self.lines.offset();
            }
            if bytes.len() >= MAX_LINE_BYTES {
                self.notices.push(SkipNotice::new("text: document of over 16 MiB divided", self.lines.offset()));
                break;
            }
        }
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok((!bytes.is_empty()).then_some(RawDocument { ordinal, offset: at, bytes }))
    }

    fn take_notices(&mut self) -> SkipNotices {
        std::mem::take(&mut self.notices)
    }
}
