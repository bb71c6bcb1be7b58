//! One sentence per line, blank lines between documents: the input format of Google's BERT code.

use lambert_config::prep::Documents;

use super::text::TextDocuments;
use crate::extract::Extractor;
use crate::source::format::{FileHead, FormatRegistry, InputFile, InputFormat};
use crate::source::{DocumentReader, SourceError, StoredReader};

/// The format `sentences`.
pub struct SentencesFormat;

impl InputFormat for SentencesFormat {
    fn name(&self) -> &'static str {
        "sentences"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::BlankLine]
    }

    fn options(&self) -> &'static [&'static str] {
        &["encoding"]
    }

    /// Always false, because this format looks like running text.
    fn recognizes(&self, _head: FileHead<'_>) -> bool {
        false
    }

    fn refusal(&self, name: &str, head: &[u8], formats: FormatRegistry) -> Option<String> {
        formats.likely_format(FileHead::Text(head)).or_else(|| formats.format_by_name(name, head))
    }

    fn extractor(&self, _file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(Extractor::sentences())
    }

    fn open(&self, file: &InputFile<'_>, stored: StoredReader) -> Result<Box<dyn DocumentReader>, SourceError> {
        Ok(Box::new(TextDocuments::open(file, stored, true)?))
    }
}
