//! WordPiece tokenizer, as in BERT: text to token ids and back.
//!
//! The `tokenizers` crate implements the encoding (cleaning, splitting, longest match first). It reads only a JSON
//! format of its own, which [`json`] writes from the vocabulary. This JSON has no added tokens, so `[MASK]` in a text
//! is plain text and never the special token.

mod error;
pub mod json;
mod library;
mod word_cache;
mod words;

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokenizers::pipeline::{EncodeOptions, PipelineToken};

pub use error::TokenizerError;
pub use json::{MASK, special_tokens, tokenizer_config, tokenizer_json};

use library::Library;
use word_cache::WordCache;
use words::Words;

/// Ids of the five special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Special {
    /// `[PAD]`: padding of a batch. No sample contains it.
    pub pad: u32,
    /// `[UNK]`: a word that the vocabulary cannot represent.
    pub unk: u32,
    /// `[CLS]`: first token of every sample.
    pub cls: u32,
    /// `[SEP]`: end of each segment.
    pub sep: u32,
    /// `[MASK]`: replacement of a token that the model predicts.
    pub mask: u32,
}

impl Special {
    /// Returns all five ids, in field order.
    #[must_use]
    pub const fn all(&self) -> [u32; 5] {
        [self.pad, self.unk, self.cls, self.sep, self.mask]
    }

    /// True if `id` is a special token.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.all().contains(&id)
    }
}

/// WordPiece tokenizer; cheap to share between threads.
pub struct Tokenizer {
    library: Library,
    words: Words,
    options: EncodeOptions,
    pieces: Arc<Vec<String>>,
    origin: String,
    special: Special,
    lowercase: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("size", &self.size()).field("lowercase", &self.lowercase).finish()
    }
}

impl Tokenizer {
    /// Reads a vocab.txt. Each line is a token, and the line number from 0 is the id of the token.
    pub fn from_vocab_file(path: impl AsRef<Path>, lowercase: bool) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::named(&bytes, lowercase, &path.display().to_string())
    }

    /// Creates a tokenizer from the bytes of a vocab.txt.
    pub fn from_vocab(bytes: &[u8], lowercase: bool) -> Result<Self, TokenizerError> {
        Self::named(bytes, lowercase, "the vocabulary")
    }

    /// Like [`Tokenizer::from_vocab`], but error messages use `origin` as the name of the vocabulary.
    pub fn named(bytes: &[u8], lowercase: bool, origin: &str) -> Result<Self, TokenizerError> {
        let tokenizer = Self::begin(bytes, lowercase, origin)?;
        tokenizer.check().map(|()| tokenizer)
    }

    /// Like [`Tokenizer::named`], but returns while a background thread is still building the tokenizer. The caller
    /// must not encode text before [`Tokenizer::check`] succeeds.
    pub fn begin(bytes: &[u8], lowercase: bool, origin: &str) -> Result<Self, TokenizerError> {
        let pieces = Arc::new(json::pieces(bytes, origin)?);
        let special = special(&pieces, origin)?;
        let library = Library::begin(pieces.clone(), lowercase);
        let words = Words::new(&pieces, special.unk, lowercase);
        let (options, origin) = (EncodeOptions::no_specials(), origin.to_owned());
        Ok(Self { library, words, options, pieces, origin, special, lowercase })
    }

    /// Waits until the tokenizer is built.
    ///
    /// # Errors
    /// The tokenizers library rejected the vocabulary.
    pub fn check(&self) -> Result<(), TokenizerError> {
        let refused =
            |reason: &String| TokenizerError::Build { origin: self.origin.clone(), source: reason.clone().into() };
        self.library.built().as_ref().map(drop).map_err(refused)
    }

    /// Returns the token ids of `text`, without special tokens. A text of 4 GiB or more, which the library rejects,
    /// becomes one `[UNK]`.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.append(text, &mut ids);
        PipelineToken::cast_slice(&ids).to_vec()
    }

    /// Returns an encoder for large texts. It caches words, and encodes most new words without the `tokenizers` crate.
    /// It is several times as fast as [`Tokenizer::encode`].
    #[must_use]
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, word_cache: WordCache::new(), ids: Vec::new(), library_ids: Vec::new() }
    }

    fn append(&self, text: &str, ids: &mut Vec<PipelineToken>) {
        let start = ids.len();
        let encoded = self.library.built().as_ref().is_ok_and(|it| it.encode_into(text, &self.options, ids).is_ok());
        if !encoded {
            ids.truncate(start);
            ids.push(self.special.unk.into());
        }
    }

    /// Returns the ids of the special tokens.
    #[must_use]
    pub const fn special(&self) -> Special {
        self.special
    }

    /// Returns the vocabulary size, in tokens.
    #[must_use]
    pub fn size(&self) -> usize {
        self.pieces.len()
    }

    /// True if text is lowercased and stripped of accents.
    #[must_use]
    pub const fn lowercase(&self) -> bool {
        self.lowercase
    }

    /// Returns all tokens, in id order.
    #[must_use]
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// Returns the token with this id, or `[UNK]` for an id outside the vocabulary.
    #[must_use]
    pub fn piece(&self, id: u32) -> &str {
        self.pieces.get(id as usize).map_or("[UNK]", String::as_str)
    }

    /// True if this token continues a word (`##ing`).
    #[must_use]
    pub fn is_continuation(&self, id: u32) -> bool {
        self.piece(id).starts_with(json::PREFIX)
    }

    /// Decodes token ids to text. Continuations are appended to their word, and spaces separate words.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            match self.piece(id).strip_prefix(json::PREFIX) {
                Some(rest) if !text.is_empty() => text.push_str(rest),
                _ => {
                    if !text.is_empty() {
                        text.push(' ');
                    }
                    text.push_str(self.piece(id));
                }
            }
        }
        text
    }
}

/// Caching encoder; see [`Tokenizer::encoder`].
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    word_cache: WordCache,
    ids: Vec<u32>,
    /// Library output for one segment of the text.
    library_ids: Vec<PipelineToken>,
}

impl Encoder<'_> {
    /// Returns the token ids of `text`, without special tokens. The result is the same as that of
    /// [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &str) -> &[u32] {
        let Self { tokenizer, word_cache, ids, library_ids } = self;
        ids.clear();
        word_cache.encode(text, ids, |part, ids| {
            if !tokenizer.words.append(part, ids) {
                library_ids.clear();
                tokenizer.append(part, library_ids);
                ids.extend_from_slice(PipelineToken::cast_slice(library_ids));
            }
        });
        ids
    }
}

fn special(pieces: &[String], origin: &str) -> Result<Special, TokenizerError> {
    let missing: Vec<&str> =
        json::SPECIAL.into_iter().filter(|name| !pieces.iter().any(|piece| piece == name)).collect();
    if !missing.is_empty() {
        return Err(TokenizerError::Missing { origin: origin.to_owned(), pieces: missing.join(" ") });
    }
    let id = |name: &str| pieces.iter().position(|piece| piece == name).unwrap_or_default() as u32;
    let [pad, unk, cls, sep, mask] = json::SPECIAL.map(id);
    Ok(Special { pad, unk, cls, sep, mask })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\nsat\n.\n[\n]\nmask\ncafe\n";

    #[test]
    fn words_split_at_the_longest_token() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.encode("The cats sat."), [5, 6, 7, 8, 9]);
        assert_eq!(tokenizer.encode("THE CAFÉ dogs"), [5, 13, 1]);
        assert_eq!(tokenizer.decode(&[2, 5, 6, 7, 8, 9, 3]), "[CLS] the cats sat . [SEP]");
        assert!(tokenizer.is_continuation(7) && !tokenizer.is_continuation(6));
        assert_eq!((tokenizer.size(), tokenizer.piece(7), tokenizer.piece(99)), (14, "##s", "[UNK]"));
    }

    #[test]
    fn cased_vocabularies_keep_case() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), false).unwrap();
        assert_eq!(tokenizer.encode("The the"), [1, 5]);
    }

    #[test]
    fn special_tokens_in_text_are_plain_text() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.encode("the [MASK] sat"), [5, 10, 12, 11, 8]);
    }

    #[test]
    fn a_vocabulary_without_special_tokens_is_rejected() {
        let error = Tokenizer::named(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", true, "v.txt").unwrap_err().to_string();
        assert!(error.contains("v.txt") && error.contains("lacks [MASK];"), "{error}");
    }

    #[test]
    fn duplicate_empty_and_unreadable_vocabularies_are_rejected() {
        let refused = |bytes: &[u8]| Tokenizer::named(bytes, true, "v.txt").unwrap_err().to_string();
        assert!(refused(format!("{VOCAB}cat\n").as_bytes()).contains("line 15"));
        assert!(refused(format!("{VOCAB}\nx\n").as_bytes()).contains("line 15"));
        assert!(refused(b"[PAD]\n\xff\n").contains("byte 6"));
        assert!(refused(b"").contains("[PAD]"));
        let error = Tokenizer::from_vocab_file("no/such/vocab.txt", true).unwrap_err().to_string();
        assert!(error.contains("no/such/vocab.txt"), "{error}");
    }
}
