//! The documents of a bucket in memory.

use crate::prep::ids;
use crate::prep::spill::{DocumentId, RECORD_HEAD};

/// Documents in the order of their place in the corpus.
#[derive(Debug, Default)]
pub struct Bucket {
    width: usize,
    bytes: Vec<u8>,
    documents: Vec<Entry>,
    /// Where each sentence ends, in tokens of its document.
    ends: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: DocumentId,
    tokens: usize,
    first: usize,
    sentences: usize,
}

/// A document of a bucket.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Its place in the corpus.
    pub id: DocumentId,
    width: usize,
    tokens: &'a [u8],
    ends: &'a [u32],
}

impl Bucket {
    /// The documents whose records `bytes` holds (see `prep::spill`) and that `keep` wants; `None` if it holds
    /// something else.
    pub fn new(bytes: Vec<u8>, width: usize, keep: impl Fn(DocumentId) -> bool) -> Option<Self> {
        let mut bucket = Self { width, ..Self::default() };
        let mut at = 0;
        while at < bytes.len() {
            let word =
                |index: usize| bytes.get(at + index * 4..at + index * 4 + 4)?.try_into().ok().map(u32::from_le_bytes);
            let id = DocumentId { file: word(0)?, ordinal: word(1)? };
            let (sentences, tokens) = (word(2)? as usize, word(3)? as usize);
            let start = at + RECORD_HEAD + 2 * sentences;
            let lengths = bytes.get(at + RECORD_HEAD..start)?;
            at = start + tokens * width;
            if keep(id) {
                let first = bucket.ends.len();
                bucket.documents.push(Entry { id, tokens: start, first, sentences });
                let mut end = 0;
                bucket.ends.extend(lengths.chunks_exact(2).map(|pair| {
                    end += u32::from(u16::from_le_bytes([pair[0], pair[1]]));
                    end
                }));
                (end as usize == tokens && at <= bytes.len()).then_some(())?;
            }
        }
        bucket.bytes = bytes;
        bucket.documents.sort_by_key(|entry| entry.id);
        Some(bucket)
    }

    /// Documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// A document, numbered from 0.
    pub fn document(&self, index: usize) -> Document<'_> {
        let entry = self.documents[index];
        let ends = &self.ends[entry.first..entry.first + entry.sentences];
        let tokens = ends.last().map_or(0, |&end| end as usize);
        let bytes = &self.bytes[entry.tokens..entry.tokens + tokens * self.width];
        Document { id: entry.id, width: self.width, tokens: bytes, ends }
    }
}

impl Document<'_> {
    /// Sentences.
    pub fn sentences(&self) -> usize {
        self.ends.len()
    }

    /// Where a sentence starts, in tokens of the document; the number of sentences gives the document's end.
    pub fn start(&self, sentence: usize) -> usize {
        if sentence == 0 { 0 } else { self.ends[sentence - 1] as usize }
    }

    /// Appends the tokens of a range.
    pub fn copy(&self, tokens: std::ops::Range<usize>, output: &mut Vec<u32>) {
        let bytes = &self.tokens[tokens.start * self.width..tokens.end * self.width];
        ids::read(bytes, self.width, output);
    }
}
