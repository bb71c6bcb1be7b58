use std::path::PathBuf;

/// Error of reading a vocabulary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read vocabulary {}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is not UTF-8.
    #[error("vocabulary {origin}: invalid UTF-8 at byte {at}; use a UTF-8 file, as `lambert vocab` writes it")]
    NotUtf8 {
        /// File.
        origin: String,
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// A line is empty.
    #[error("vocabulary {origin}, line {line}: the line is empty; expected one token per line")]
    EmptyLine {
        /// File.
        origin: String,
        /// Line number, from 1.
        line: usize,
    },
    /// A token occurs twice.
    #[error("vocabulary {origin}, line {line}: {piece:?} is already on line {first}; each token must be unique")]
    Doubled {
        /// File.
        origin: String,
        /// Line number, from 1.
        line: usize,
        /// Line of the first occurrence, from 1.
        first: usize,
        /// Token.
        piece: String,
    },
    /// Special tokens are missing.
    #[error("vocabulary {origin} lacks {pieces}; BERT needs [PAD] [UNK] [CLS] [SEP] [MASK]")]
    Missing {
        /// File.
        origin: String,
        /// Missing tokens.
        pieces: String,
    },
    /// The file is no tokenizer.json that lambert reads.
    #[error("tokenizer {origin}: {why}")]
    File {
        /// File.
        origin: String,
        /// Cause.
        why: String,
    },
    /// The tokenizers library rejected the vocabulary.
    #[error("the tokenizers library rejected vocabulary {origin}")]
    Build {
        /// File.
        origin: String,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizers library failed to encode a text.
    #[error("the tokenizers library failed to encode a text with vocabulary {origin}")]
    Encode {
        /// File.
        origin: String,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
