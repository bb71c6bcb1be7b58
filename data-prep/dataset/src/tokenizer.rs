//! Text to piece ids and back, by a WordPiece vocabulary, as BERT does it.
//!
//! The encoding itself (cleaning, splitting, longest match first) is the `tokenizers` crate's. It reads nothing but
//! its own canonical JSON, which [`json`] writes from the pieces. No added tokens stand in that JSON, so a text that
//! spells `[MASK]` is five characters of text and never the special id.

mod error;
pub mod json;
mod library;
mod memo;
mod words;

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokenizers::pipeline::{EncodeOptions, PipelineToken};

pub use error::TokenizerError;
pub use json::{MASK, special_tokens, tokenizer_config, tokenizer_json};

use library::Library;
use memo::Memo;
use words::Words;

/// The ids of the five special pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Special {
    /// `[PAD]`: fills a batch up; not part of any sample.
    pub pad: u32,
    /// `[UNK]`: a word that no pieces spell.
    pub unk: u32,
    /// `[CLS]`: the first piece of every sample.
    pub cls: u32,
    /// `[SEP]`: ends each segment.
    pub sep: u32,
    /// `[MASK]`: stands where a piece is to be guessed.
    pub mask: u32,
}

impl Special {
    /// All five, in the order of the fields.
    #[must_use]
    pub const fn all(&self) -> [u32; 5] {
        [self.pad, self.unk, self.cls, self.sep, self.mask]
    }

    /// Whether `id` is one of the five.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.all().contains(&id)
    }
}

/// A WordPiece tokenizer; cheap to share between threads.
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
    /// Reads a vocab.txt: a piece a line, the line number from 0 is its id.
    pub fn from_vocab_file(path: impl AsRef<Path>, lowercase: bool) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::named(&bytes, lowercase, &path.display().to_string())
    }

    /// The same from the bytes of a vocab.txt.
    pub fn from_vocab(bytes: &[u8], lowercase: bool) -> Result<Self, TokenizerError> {
        Self::named(bytes, lowercase, "the vocabulary")
    }

    /// The same; errors call the vocabulary `origin`.
    pub fn named(bytes: &[u8], lowercase: bool, origin: &str) -> Result<Self, TokenizerError> {
        let tokenizer = Self::begin(bytes, lowercase, origin)?;
        tokenizer.check().map(|()| tokenizer)
    }

    /// The same, while a part of it is still being built: what it encodes is of no use until [`Tokenizer::check`] was asked.
    pub fn begin(bytes: &[u8], lowercase: bool, origin: &str) -> Result<Self, TokenizerError> {
        let pieces = Arc::new(json::pieces(bytes, origin)?);
        let special = special(&pieces, origin)?;
        let library = Library::begin(pieces.clone(), lowercase);
        let words = Words::new(&pieces, special.unk, lowercase);
        let (options, origin) = (EncodeOptions::no_specials(), origin.to_owned());
        Ok(Self { library, words, options, pieces, origin, special, lowercase })
    }

    /// Whether all of it was built; waits until it is.
    pub fn check(&self) -> Result<(), TokenizerError> {
        let refused =
            |reason: &String| TokenizerError::Build { origin: self.origin.clone(), source: reason.clone().into() };
        self.library.built().as_ref().map(drop).map_err(refused)
    }

    /// The ids of `text`, without special pieces. (The library refuses texts of 4 GiB; such a one is one `[UNK]`.)
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.append(text, &mut ids);
        PipelineToken::cast_slice(&ids).to_vec()
    }

    /// For much text: remembers the words it has seen, spells most new ones itself, and is several times as fast.
    #[must_use]
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, memo: Memo::new(), ids: Vec::new(), spelt: Vec::new() }
    }

    fn append(&self, text: &str, ids: &mut Vec<PipelineToken>) {
        let start = ids.len();
        let encoded = self.library.built().as_ref().is_ok_and(|it| it.encode_into(text, &self.options, ids).is_ok());
        if !encoded {
            ids.truncate(start);
            ids.push(self.special.unk.into());
        }
    }

    /// The ids of the special pieces.
    #[must_use]
    pub const fn special(&self) -> Special {
        self.special
    }

    /// Pieces in the vocabulary.
    #[must_use]
    pub fn size(&self) -> usize {
        self.pieces.len()
    }

    /// Whether text is lowercased and stripped of accents.
    #[must_use]
    pub const fn lowercase(&self) -> bool {
        self.lowercase
    }

    /// All pieces, in the order of their ids.
    #[must_use]
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// The piece with this id; `[UNK]` for an id outside the vocabulary.
    #[must_use]
    pub fn piece(&self, id: u32) -> &str {
        self.pieces.get(id as usize).map_or("[UNK]", String::as_str)
    }

    /// Whether this piece goes on the word before it (`##ing`).
    #[must_use]
    pub fn is_continuation(&self, id: u32) -> bool {
        self.piece(id).starts_with(json::PREFIX)
    }

    /// The pieces as text: continuations joined, words separated by a space.
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

/// See [`Tokenizer::encoder`].
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    memo: Memo,
    ids: Vec<u32>,
    /// What the library gave for a part.
    spelt: Vec<PipelineToken>,
}

impl Encoder<'_> {
    /// The ids of `text`, without special pieces, until the next call; equal to those of [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &str) -> &[u32] {
        let Self { tokenizer, memo, ids, spelt } = self;
        ids.clear();
        memo.encode(text, ids, |part, ids| {
            if !tokenizer.words.append(part, ids) {
                spelt.clear();
                tokenizer.append(part, spelt);
                ids.extend_from_slice(PipelineToken::cast_slice(spelt));
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
    fn words_split_at_the_longest_piece() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.encode("The cats sat."), [5, 6, 7, 8, 9]);
        assert_eq!(tokenizer.encode("THE CAFÉ dogs"), [5, 13, 1]);
        assert_eq!(tokenizer.decode(&[2, 5, 6, 7, 8, 9, 3]), "[CLS] the cats sat . [SEP]");
        assert!(tokenizer.is_continuation(7) && !tokenizer.is_continuation(6));
        assert_eq!((tokenizer.size(), tokenizer.piece(7), tokenizer.piece(99)), (14, "##s", "[UNK]"));
    }

    #[test]
    fn case_is_kept_where_asked() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), false).unwrap();
        assert_eq!(tokenizer.encode("The the"), [1, 5]);
    }

    #[test]
    fn special_pieces_in_a_text_are_text() {
        let tokenizer = Tokenizer::from_vocab(VOCAB.as_bytes(), true).unwrap();
        assert_eq!(tokenizer.encode("the [MASK] sat"), [5, 10, 12, 11, 8]);
    }

    #[test]
    fn a_vocabulary_without_special_pieces_is_refused() {
        let error = Tokenizer::named(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", true, "v.txt").unwrap_err().to_string();
        assert!(error.contains("v.txt") && error.contains("lacks [MASK];"), "{error}");
    }

    #[test]
    fn doubled_empty_and_unreadable_vocabularies_are_refused() {
        let refused = |bytes: &[u8]| Tokenizer::named(bytes, true, "v.txt").unwrap_err().to_string();
        assert!(refused(format!("{VOCAB}cat\n").as_bytes()).contains("line 15"));
        assert!(refused(format!("{VOCAB}\nx\n").as_bytes()).contains("line 15"));
        assert!(refused(b"[PAD]\n\xff\n").contains("byte 6"));
        assert!(refused(b"").contains("[PAD]"));
        let error = Tokenizer::from_vocab_file("no/such/vocab.txt", true).unwrap_err().to_string();
        assert!(error.contains("no/such/vocab.txt"), "{error}");
    }
}
