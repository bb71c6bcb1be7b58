//! The vocabulary of a run, which is an object of one of two names.

use bytes::Bytes;

use crate::run::{TOKENIZER, VOCABULARY};
use crate::{Result, Store};

/// Maximum size of a vocabulary, bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Vocabulary of a run.
#[derive(Debug, Clone)]
pub struct StoredVocabulary {
    /// Name of the object.
    pub name: &'static str,
    /// Content.
    pub bytes: Bytes,
}

impl StoredVocabulary {
    /// Reads the vocabulary of a run.
    ///
    /// # Errors
    /// The run has none, or the store cannot be read.
    pub fn read(store: &Store) -> Result<Self> {
        match store.get_at_most(VOCABULARY, MAX_BYTES) {
            Ok(bytes) => Ok(Self { name: VOCABULARY, bytes }),
            Err(error) if error.is_not_found() => match store.get_at_most(TOKENIZER, MAX_BYTES) {
                Ok(bytes) => Ok(Self { name: TOKENIZER, bytes }),
                Err(other) if other.is_not_found() => Err(error),
                Err(other) => Err(other),
            },
            Err(error) => Err(error),
        }
    }
}
