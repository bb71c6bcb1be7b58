//! Records of tokenized documents in the work folder. Tokenization writes them and sample generation reads them.

pub mod ids;

use serde::{Deserialize, Serialize};

use lambert_dataset::random::Key;

/// Identifies a document in the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DocumentId {
    /// File number.
    pub file: u32,
    /// Index of the document in its file.
    pub ordinal: u32,
}

impl DocumentId {
    /// Key of the random decisions of type `kind` about this document.
    pub fn key(self, seed: u64, kind: &str) -> Key {
        Key::new(seed).with_bytes(kind.as_bytes()).with(u64::from(self.file)).with(u64::from(self.ordinal))
    }
}

/// Bytes before the sentence lengths of a record: file, ordinal, number of sentences, number of tokens (4 bytes each).
pub const RECORD_HEADER_BYTES: usize = 16;

/// Computes the end offset of each sentence, in tokens of its document, from the sentence lengths in a record.
pub fn sentence_ends(lengths: &[u8]) -> Vec<u32> {
    let mut end = 0;
    let add = |pair: &[u8]| {
        end += u32::from(u16::from_le_bytes([pair[0], pair[1]]));
        end
    };
    lengths.chunks_exact(2).map(add).collect()
}

/// Start offset of a sentence, in tokens of its document.
pub fn sentence_start(ends: &[u32], sentence: usize) -> u32 {
    if sentence == 0 { 0 } else { ends[sentence - 1] }
}
