//! A tokenized document as its record in the work folder has it: written when the corpus is tokenized, read where
//! samples are made of it.

pub mod ids;

use serde::{Deserialize, Serialize};

use lambert_dataset::random::Key;

/// A document's place in the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DocumentId {
    /// The file's number.
    pub file: u32,
    /// The document's number in the file.
    pub ordinal: u32,
}

impl DocumentId {
    /// This document's key for a choice of one kind.
    pub fn key(self, seed: u64, kind: &str) -> Key {
        Key::new(seed).with_bytes(kind.as_bytes()).with(u64::from(self.file)).with(u64::from(self.ordinal))
    }
}

/// Bytes before the sentence lengths of a record: file, ordinal, sentences, tokens.
pub const RECORD_HEAD: usize = 16;

/// The end of each sentence, in tokens of its document, from the lengths in a record.
pub fn ends(lengths: &[u8]) -> Vec<u32> {
    let mut end = 0;
    let add = |pair: &[u8]| {
        end += u32::from(u16::from_le_bytes([pair[0], pair[1]]));
        end
    };
    lengths.chunks_exact(2).map(add).collect()
}

/// The start of a sentence.
pub fn start_of(ends: &[u32], sentence: usize) -> u32 {
    if sentence == 0 { 0 } else { ends[sentence - 1] }
}
