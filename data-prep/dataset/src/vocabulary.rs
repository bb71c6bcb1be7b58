//! The facts of a vocabulary that decide a model's shape and how text becomes its input.

use serde::{Deserialize, Serialize};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// The vocabulary that a model was trained with, as the state of a checkpoint names it. The ids of the special pieces follow from
/// the pieces: [`Tokenizer::special`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyFacts {
    /// Pieces, the special ones included.
    #[serde(rename = "vocabulary")]
    pub size: usize,
    /// Whether text is lowercased and stripped of accents before it is split into pieces.
    pub lowercase: bool,
}

impl VocabularyFacts {
    /// The tokenizer of these facts and of the bytes of a vocab.txt. It may have another size.
    ///
    /// # Errors
    /// The bytes are not a vocabulary.
    pub fn tokenizer(self, vocabulary: &[u8]) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_vocab(vocabulary, self.lowercase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints that exist have these names.
    #[test]
    fn checkpoints_name_the_facts() {
        let facts = VocabularyFacts { size: 9, lowercase: true };
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(text, r#"{"vocabulary":9,"lowercase":true}"#);
        let state = r#"{"updates":{},"vocabulary":9,"lowercase":true}"#;
        assert_eq!(serde_json::from_str::<VocabularyFacts>(state).unwrap(), facts);
    }
}
