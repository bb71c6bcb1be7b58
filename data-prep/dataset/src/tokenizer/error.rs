use std::path::PathBuf;

/// Why a vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read vocabulary {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not text.
    #[error("vocabulary {origin} is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The file.
        origin: String,
        /// The first bad byte, from 0.
        at: usize,
    },
    /// A line holds no piece.
    #[error("vocabulary {origin}, line {line}: the line is empty; expected one piece on every line")]
    EmptyLine {
        /// The file.
        origin: String,
        /// From 1.
        line: usize,
    },
    /// Two ids for one piece.
    #[error("vocabulary {origin}, line {line}: {piece:?} stands on line {first} already")]
    Doubled {
        /// The file.
        origin: String,
        /// From 1.
        line: usize,
        /// The line that has it first, from 1.
        first: usize,
        /// The piece.
        piece: String,
    },
    /// Special pieces are missing.
    #[error("vocabulary {origin} lacks {pieces}; BERT needs [PAD] [UNK] [CLS] [SEP] [MASK]")]
    Missing {
        /// The file.
        origin: String,
        /// Those that are missing.
        pieces: String,
    },
    /// The tokenizers library refused it.
    #[error("the tokenizers library refuses vocabulary {origin}")]
    Build {
        /// The file.
        origin: String,
        /// Its reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
