//! Vocabulary properties that determine the shape of a model and the tokenization of its input.

use serde::{Deserialize, Serialize};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Vocabulary properties of a trained model, as stored in the state of a checkpoint. The vocabulary determines the ids
/// of the special tokens ([`Tokenizer::special`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyInfo {
    /// Number of tokens, including special tokens.
    #[serde(rename = "vocabulary")]
    pub size: usize,
    /// True if text is lowercased before tokenization. WordPiece also strips accents then.
    pub lowercase: bool,
}

impl VocabularyInfo {
    /// Creates the tokenizer for the bytes of a vocab.txt, with the case handling of `self`, or of a tokenizer.json. The
    /// size of `vocabulary` can differ from `self.size`.
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

    /// Existing checkpoints contain these field names.
    #[test]
    fn serialized_field_names_are_stable() {
        let info = VocabularyInfo { size: 9, lowercase: true };
        let text = serde_json::to_string(&info).unwrap();
        assert_eq!(text, r#"{"vocabulary":9,"lowercase":true}"#);
        let state = r#"{"updates":{},"vocabulary":9,"lowercase":true}"#;
        assert_eq!(serde_json::from_str::<VocabularyInfo>(state).unwrap(), info);
    }
}
