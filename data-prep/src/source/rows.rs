//! Rows of text: each is a document, or a sentence of one.

use lambert_config::prep::Documents;

use super::{DocumentReader, Notes, RawDocument, SourceError};
use crate::extract::Extractor;

/// The values of `documents` that a format of rows takes.
pub const DOCUMENTS: &[Documents] = &[Documents::Row, Documents::Sentence];

/// The extractor of a format of rows. Rows are not wrapped at a width; their lines are paragraphs.
pub fn extractor(documents: Documents) -> Extractor {
    if documents == Documents::Sentence { Extractor::sentences() } else { Extractor::paragraphs() }
}

/// Rows that make a document where no empty row ends it earlier.
const SENTENCES: usize = 512;

/// Gives the text of one row after another.
pub trait Rows: Send {
    /// Where the row starts (a byte of the file, or a row of it) and its text; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError>;
    /// What was left out since the last call.
    fn notes(&mut self) -> Notes;
}

/// Rows as documents.
pub struct RowDocuments<R> {
    rows: R,
    sentences: bool,
    ordinal: u32,
}

impl<R: Rows> RowDocuments<R> {
    /// Each row is a document, or a sentence of one.
    pub fn new(rows: R, documents: Documents) -> Self {
        Self { rows, sentences: documents == Documents::Sentence, ordinal: 0 }
    }

    fn gather(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut document: Option<(u64, Vec<u8>)> = None;
        for _ in 0..SENTENCES {
            match self.rows.next()? {
                None => break,
                Some((_, text)) if text.trim_ascii().is_empty() => {
                    if document.is_some() {
                        break;
                    }
                }
                Some((at, text)) => {
                    let (_, lines) = document.get_or_insert((at, Vec::new()));
                    lines.extend(text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
                    lines.push(b'\n');
                }
            }
        }
        Ok(document)
    }
}

impl<R: Rows> DocumentReader for RowDocuments<R> {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let found = if self.sentences { self.gather()? } else { self.rows.next()? };
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok(found.map(|(at, bytes)| RawDocument { ordinal, at, bytes }))
    }

    fn notes(&mut self) -> Notes {
        self.rows.notes()
    }
}
