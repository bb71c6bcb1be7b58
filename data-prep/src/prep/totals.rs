//! How much a part of a corpus is.

use serde::{Deserialize, Serialize};

/// How much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Documents.
    pub documents: u64,
    /// Sentences.
    pub sentences: u64,
    /// Tokens, special pieces not included.
    pub tokens: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.documents += other.documents;
        self.sentences += other.sentences;
        self.tokens += other.tokens;
    }
}

impl std::ops::SubAssign for Totals {
    fn sub_assign(&mut self, other: Self) {
        self.documents -= other.documents;
        self.sentences -= other.sentences;
        self.tokens -= other.tokens;
    }
}
