//! A sentence a line, blank lines between documents: the input of Google's BERT code.

use lambert_config::prep::Documents;

use super::text::TextDocuments;
use crate::extract::Extractor;
use crate::source::format::{Head, InputFile, InputFormat, Registry};
use crate::source::{DocumentReader, SourceError, Stored};

/// The format `sentences`.
pub struct Sentences;

impl InputFormat for Sentences {
    fn name(&self) -> &'static str {
        "sentences"
    }

    fn documents(&self) -> &'static [Documents] {
        &[Documents::BlankLine]
    }

    /// Nothing tells it from running text.
    fn recognizes(&self, _head: Head<'_>) -> bool {
        false
    }

    fn refusal(&self, head: &[u8], formats: Registry) -> Option<String> {
        formats.look_alike(Head::Text(head))
    }

    fn extractor(&self, _file: &InputFile<'_>) -> Result<Extractor, SourceError> {
        Ok(Extractor::sentences())
    }

    fn open(&self, file: &InputFile<'_>, stored: Stored) -> Result<Box<dyn DocumentReader>, SourceError> {
        Ok(Box::new(TextDocuments::open(file, stored, true)?))
    }
}
