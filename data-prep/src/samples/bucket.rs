//! The documents of a bucket in memory.

use std::ops::Range;

use crate::record::{DocumentId, RECORD_HEADER_BYTES, ids, sentence_ends, sentence_start};
use lambert_dataset::random::Key;

/// Documents, or fragments of documents, in the order of document IDs.
#[derive(Debug, Default)]
pub struct DocumentBucket {
    width: usize,
    bytes: Vec<u8>,
    documents: Vec<BucketEntry>,
    /// End offset of each sentence, in tokens of its document or fragment.
    ends: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct BucketEntry {
    id: DocumentId,
    /// Index, within the document, of the first sentence of this fragment.
    first_sentence: usize,
    tokens: usize,
    first_end: usize,
    sentences: usize,
}

/// A document of a bucket, or a fragment of a document.
#[derive(Debug, Clone, Copy)]
pub struct BucketDocument<'a> {
    /// Document ID.
    pub id: DocumentId,
    first_sentence: usize,
    width: usize,
    tokens: &'a [u8],
    ends: &'a [u32],
}

impl DocumentBucket {
    /// Parses the document records in `bytes` (see [`crate::record`]). Returns `None` if they are malformed.
    /// `sentence_ranges` maps the sentence ends of a document to ranges of sentences. Each range becomes a separate
    /// document of the bucket.
    pub fn new(
        bytes: Vec<u8>,
        width: usize,
        sentence_ranges: impl Fn(DocumentId, &[u32]) -> Vec<Range<usize>>,
    ) -> Option<Self> {
        let mut bucket = Self { width, ..Self::default() };
        let mut at = 0;
        while at < bytes.len() {
            let word =
                |index: usize| bytes.get(at + index * 4..at + index * 4 + 4)?.try_into().ok().map(u32::from_le_bytes);
            let id = DocumentId { file: word(0)?, ordinal: word(1)? };
            let (sentences, tokens) = (word(2)? as usize, word(3)? as usize);
            let start = at + RECORD_HEADER_BYTES + 2 * sentences;
            let lengths = bytes.get(at + RECORD_HEADER_BYTES..start)?;
            at = start + tokens * width;
            let ends = sentence_ends(lengths);
            (sentence_start(&ends, sentences) as usize == tokens && at <= bytes.len()).then_some(())?;
            sentence_ranges(id, &ends).into_iter().for_each(|sentences| bucket.push(id, start, &ends, sentences));
        }
        bucket.bytes = bytes;
        bucket.documents.sort_by_key(|entry| (entry.id, entry.first_sentence));
        Some(bucket)
    }

    /// Adds a range of sentences of a document whose tokens start at `tokens`.
    fn push(&mut self, id: DocumentId, tokens: usize, ends: &[u32], range: Range<usize>) {
        let (first, before) = (self.ends.len(), sentence_start(ends, range.start));
        let (sentences, tokens) = (range.len(), tokens + before as usize * self.width);
        self.documents.push(BucketEntry { id, first_sentence: range.start, tokens, first_end: first, sentences });
        self.ends.extend(ends[range].iter().map(|end| end - before));
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Returns a document by index.
    pub fn document(&self, index: usize) -> BucketDocument<'_> {
        let entry = self.documents[index];
        let ends = &self.ends[entry.first_end..entry.first_end + entry.sentences];
        let tokens = ends.last().map_or(0, |&end| end as usize);
        let bytes = &self.bytes[entry.tokens..entry.tokens + tokens * self.width];
        BucketDocument { id: entry.id, first_sentence: entry.first_sentence, width: self.width, tokens: bytes, ends }
    }
}

impl BucketDocument<'_> {
    /// Key of the random decisions of type `kind` about this document.
    pub fn key(&self, seed: u64, kind: &str) -> Key {
        let key = self.id.key(seed, kind);
        if self.first_sentence == 0 { key } else { key.with_bytes(b"piece").with(self.first_sentence as u64) }
    }

    /// Number of sentences.
    pub fn sentences(&self) -> usize {
        self.ends.len()
    }

    /// Start offset of a sentence, in tokens of the document. The index after the last sentence yields the end of the
    /// document.
    pub fn sentence_start(&self, sentence: usize) -> usize {
        if sentence == 0 { 0 } else { self.ends[sentence - 1] as usize }
    }

    /// Appends a range of tokens to `output`.
    pub fn copy(&self, tokens: Range<usize>, output: &mut Vec<u32>) {
        let bytes = &self.tokens[tokens.start * self.width..tokens.end * self.width];
        ids::read(bytes, self.width, output);
    }
}
