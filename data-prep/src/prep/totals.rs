//! Counts of documents, sentences and tokens.

use serde::{Deserialize, Serialize};

/// Counts of documents, sentences and tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentTotals {
    /// Number of documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of tokens, without special tokens.
    pub tokens: u64,
}

impl std::ops::AddAssign for DocumentTotals {
    fn add_assign(&mut self, other: Self) {
        self.documents += other.documents;
        self.sentences += other.sentences;
        self.tokens += other.tokens;
    }
}

impl std::ops::SubAssign for DocumentTotals {
    fn sub_assign(&mut self, other: Self) {
        self.documents -= other.documents;
        self.sentences -= other.sentences;
        self.tokens -= other.tokens;
    }
}
