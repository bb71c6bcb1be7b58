//! The documents of a bucket in memory.

use std::ops::Range;

use crate::record::{DocumentId, RECORD_HEAD, ends, ids, start_of};
use lambert_dataset::random::Key;

/// Documents, or pieces of them, in the order of their place in the corpus.
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
    /// The first sentence in its document.
    piece: usize,
    tokens: usize,
    first: usize,
    sentences: usize,
}

/// A document of a bucket.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Its place in the corpus.
    pub id: DocumentId,
    piece: usize,
    width: usize,
    tokens: &'a [u8],
    ends: &'a [u32],
}

impl Bucket {
    /// The documents whose records `bytes` holds (see [`crate::record`]); `None` if it holds something else. `pieces` gives the
    /// ranges of sentences that are wanted, each as a document of its own, from where the sentences end.
    pub fn new(bytes: Vec<u8>, width: usize, pieces: impl Fn(DocumentId, &[u32]) -> Vec<Range<usize>>) -> Option<Self> {
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
            let ends = ends(lengths);
            (start_of(&ends, sentences) as usize == tokens && at <= bytes.len()).then_some(())?;
            pieces(id, &ends).into_iter().for_each(|piece| bucket.push(id, start, &ends, piece));
        }
        bucket.bytes = bytes;
        bucket.documents.sort_by_key(|entry| (entry.id, entry.piece));
        Some(bucket)
    }

    /// Adds some sentences of a document whose tokens start at `tokens`.
    fn push(&mut self, id: DocumentId, tokens: usize, ends: &[u32], piece: Range<usize>) {
        let (first, before) = (self.ends.len(), start_of(ends, piece.start));
        let (sentences, tokens) = (piece.len(), tokens + before as usize * self.width);
        self.documents.push(Entry { id, piece: piece.start, tokens, first, sentences });
        self.ends.extend(ends[piece].iter().map(|end| end - before));
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
        Document { id: entry.id, piece: entry.piece, width: self.width, tokens: bytes, ends }
    }
}

impl Document<'_> {
    /// Its key for a choice of one kind.
    pub fn key(&self, seed: u64, kind: &str) -> Key {
        let key = self.id.key(seed, kind);
        if self.piece == 0 { key } else { key.with_bytes(b"piece").with(self.piece as u64) }
    }

    /// Sentences.
    pub fn sentences(&self) -> usize {
        self.ends.len()
    }

    /// Where a sentence starts, in tokens of the document; the number of sentences gives the document's end.
    pub fn start(&self, sentence: usize) -> usize {
        if sentence == 0 { 0 } else { self.ends[sentence - 1] as usize }
    }

    /// Appends the tokens of a range.
    pub fn copy(&self, tokens: Range<usize>, output: &mut Vec<u32>) {
        let bytes = &self.tokens[tokens.start * self.width..tokens.end * self.width];
        ids::read(bytes, self.width, output);
    }
}
