//! Documents from rows of text. Each row is a document, or a sentence of a document.

use lambert_config::prep::Documents;

use super::{DocumentReader, RawDocument, SkipNotices, SourceError};
use crate::extract::Extractor;

/// Values of `documents` that row formats support.
pub const DOCUMENTS: &[Documents] = &[Documents::Row, Documents::Sentence];

/// Creates the extractor of a row format. Rows are not hard-wrapped, so each line of a row is a paragraph.
pub fn extractor(documents: Documents) -> Extractor {
    if documents == Documents::Sentence { Extractor::sentences() } else { Extractor::paragraphs() }
}

/// Upper limit on the number of rows in a document. An empty row can end the document earlier.
const MAX_SENTENCES: usize = 512;

/// Reads the text of rows.
pub trait RowReader: Send {
    /// Returns the position (byte offset or row) and the text of the next row, or `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError>;
    /// Returns the notices since the last call.
    fn take_notices(&mut self) -> SkipNotices;
}

/// Documents from rows.
pub struct RowDocuments<R> {
    rows: R,
    is_sentence_per_row: bool,
    ordinal: u32,
}

impl<R: RowReader> RowDocuments<R> {
    /// Creates a reader of `rows`. `documents` determines whether a row is a document or a sentence of a document.
    pub fn new(rows: R, documents: Documents) -> Self {
        Self { rows, is_sentence_per_row: documents == Documents::Sentence, ordinal: 0 }
    }

    fn next_group(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let mut document: Option<(u64, Vec<u8>)> = None;
        let mut sentences = 0;
        // Empty rows before the first sentence do not count: the end of the input is the only reason for no document.
        while sentences < MAX_SENTENCES {
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
                    sentences += 1;
                }
            }
        }
        Ok(document)
    }
}

impl<R: RowReader> DocumentReader for RowDocuments<R> {
    fn next(&mut self) -> Result<Option<RawDocument>, SourceError> {
        let found = if self.is_sentence_per_row { self.next_group()? } else { self.rows.next()? };
        let ordinal = self.ordinal;
        self.ordinal += 1;
        Ok(found.map(|(offset, bytes)| RawDocument { ordinal, offset, bytes }))
    }

    fn take_notices(&mut self) -> SkipNotices {
        self.rows.take_notices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `0` to `N`, after many empty rows.
    struct Numbers(std::vec::IntoIter<String>);

    impl RowReader for Numbers {
        fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
            Ok(self.0.next().map(|text| (0, text.into_bytes())))
        }

        fn take_notices(&mut self) -> SkipNotices {
            SkipNotices::default()
        }
    }

    #[test]
    fn many_empty_rows_do_not_end_the_input() {
        let mut rows = vec!["first".to_owned()];
        rows.extend(vec![String::new(); 3 * MAX_SENTENCES]);
        rows.extend((0..MAX_SENTENCES + 1).map(|number| number.to_string()));
        let mut documents = RowDocuments::new(Numbers(rows.into_iter()), Documents::Sentence);
        let mut lines = Vec::new();
        while let Some(document) = documents.next().unwrap() {
            lines.push(document.bytes.iter().filter(|byte| **byte == b'\n').count());
        }
        assert_eq!(lines, [1, MAX_SENTENCES, 1]);
    }
}
