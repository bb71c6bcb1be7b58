//! Tokens of a vocabulary, by id: a vocab.txt (WordPiece) or a tokenizer.json (byte-level BPE and Unigram).

use serde::{Deserialize, Serialize};

use super::{Special, TokenizerError, TokenizerFile, byte_symbols, json};

/// Model of a tokenizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerModel {
    /// Longest tokens first, from a vocab.txt (BERT).
    #[default]
    WordPiece,
    /// Merges of pairs of bytes (RoBERTa, ModernBERT).
    Bpe,
    /// Most probable tokens of SentencePiece (ALBERT, DeBERTa-v3).
    Unigram,
}

impl TokenizerModel {
    /// True for WordPiece.
    #[must_use]
    pub fn is_word_piece(&self) -> bool {
        *self == Self::WordPiece
    }

    /// Name of the file with the vocabulary.
    #[must_use]
    pub fn file(&self) -> &'static str {
        match self {
            Self::WordPiece => crate::VOCABULARY,
            Self::Bpe | Self::Unigram => crate::TOKENIZER,
        }
    }
}

impl std::fmt::Display for TokenizerModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WordPiece => "WordPiece",
            Self::Bpe => "BPE",
            Self::Unigram => "Unigram",
        })
    }
}

/// First character of a Unigram token that starts a word.
pub const WORD_START: char = '▁';

/// Tokens of a vocabulary, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTable {
    pub(super) model: TokenizerModel,
    pub(super) texts: Vec<String>,
    pub(super) special: Special,
    /// Ids of the special tokens that have no role in training, in ascending order.
    pub(super) other_special: Vec<u32>,
}

impl TokenTable {
    /// Reads the bytes of a vocab.txt or tokenizer.json. `origin` is the name of the vocabulary in error messages.
    ///
    /// # Errors
    /// The bytes are neither, or special tokens are missing.
    pub fn read(bytes: &[u8], origin: &str) -> Result<Self, TokenizerError> {
        match TokenizerFile::is_json(bytes) {
            true => TokenizerFile::read(bytes, origin).map(|file| file.tokens),
            false => {
                let texts = json::pieces(bytes, origin)?;
                let special = super::special(&texts, origin)?;
                Ok(Self { model: TokenizerModel::WordPiece, texts, special, other_special: Vec::new() })
            }
        }
    }

    /// Number of tokens of a vocab.txt or tokenizer.json; none if it is not valid.
    #[must_use]
    pub fn count(bytes: &[u8]) -> Option<usize> {
        match TokenizerFile::is_json(bytes) {
            true => TokenizerFile::read(bytes, "").ok().map(|file| file.tokens.size()),
            false => Some(bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count()),
        }
    }

    /// Model of the tokenizer.
    #[must_use]
    pub const fn model(&self) -> TokenizerModel {
        self.model
    }

    /// Number of tokens.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.texts.len()
    }

    /// All tokens, in id order.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Ids of the special tokens.
    #[must_use]
    pub const fn special(&self) -> Special {
        self.special
    }

    /// True if `id` is one of the five special tokens, or another special token of a tokenizer.json.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(id) || self.other_special.binary_search(&id).is_ok()
    }

    /// Token with this id, as it is written in the vocabulary. The token for unknown text if there is no such id.
    #[must_use]
    pub fn text(&self, id: u32) -> &str {
        let text = |id: u32| self.texts.get(id as usize).map(String::as_str);
        text(id).or_else(|| text(self.special.unk)).unwrap_or(json::UNK)
    }

    /// True if this token continues a word. A word starts
    /// - in WordPiece, at a token without `##`;
    /// - in BPE, at a token that starts with a space, as in fairseq;
    /// - in Unigram, at a token that starts with `▁`, or that is one ASCII punctuation mark other than the apostrophe,
    ///   as in ALBERT.
    #[must_use]
    pub fn is_continuation(&self, id: u32) -> bool {
        let text = self.text(id);
        match self.model {
            TokenizerModel::WordPiece => text.starts_with(json::PREFIX),
            _ if self.is_special(id) => false,
            TokenizerModel::Bpe => !text.starts_with(byte_symbols::SPACE),
            TokenizerModel::Unigram => !text.starts_with(WORD_START) && !is_mark(text),
        }
    }

    /// Ids of the tokens that can replace a masked token at random. For WordPiece these are all tokens, as in BERT. For
    /// other models, special tokens are left out.
    #[must_use]
    pub fn replacements(&self) -> Vec<u32> {
        let is_used = |id: &u32| self.model.is_word_piece() || !self.is_special(*id);
        (0..self.size() as u32).filter(is_used).collect()
    }

    /// Decodes token IDs to text. In WordPiece, continuations are appended to their word, and spaces separate words.
    /// Bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        match self.model {
            TokenizerModel::WordPiece => self.decode_words(ids),
            TokenizerModel::Bpe => {
                let mut bytes = Vec::new();
                for &id in ids {
                    match self.is_special(id) {
                        true => bytes.extend_from_slice(self.text(id).as_bytes()),
                        false => self.text(id).chars().for_each(|symbol| match byte_symbols::byte(symbol) {
                            Some(byte) => bytes.push(byte),
                            // An added token is plain text.
                            None => bytes.extend_from_slice(symbol.encode_utf8(&mut [0; 4]).as_bytes()),
                        }),
                    }
                }
                String::from_utf8_lossy(&bytes).into_owned()
            }
            TokenizerModel::Unigram => {
                let text: String = ids.iter().map(|&id| self.text(id)).collect();
                let text = text.replace(WORD_START, " ");
                text.strip_prefix(' ').unwrap_or(&text).to_owned()
            }
        }
    }

    fn decode_words(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            match self.text(id).strip_prefix(json::PREFIX) {
                Some(rest) if !text.is_empty() => text.push_str(rest),
                _ => {
                    if !text.is_empty() {
                        text.push(' ');
                    }
                    text.push_str(self.text(id));
                }
            }
        }
        text
    }

    /// Text of one token for a reader: continuations of WordPiece keep their `##`, other tokens lose the space before
    /// them. A token that is only a space stays as it is written in the vocabulary.
    #[must_use]
    pub fn label(&self, id: u32) -> String {
        match self.model {
            TokenizerModel::WordPiece => self.text(id).to_owned(),
            TokenizerModel::Bpe | TokenizerModel::Unigram => match self.decode(&[id]).trim_start() {
                "" => self.text(id).to_owned(),
                text => text.to_owned(),
            },
        }
    }
}

fn is_mark(text: &str) -> bool {
    matches!(text.as_bytes(), [mark] if mark.is_ascii_punctuation() && *mark != b'\'')
}
