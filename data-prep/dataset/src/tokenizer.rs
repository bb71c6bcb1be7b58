//! Tokenizer: text to token IDs and back, with a WordPiece, byte-level BPE or Unigram model.
//!
//! The `tokenizers` crate implements the encoding. It reads only a JSON format of its own. [`json`] writes it from a
//! vocab.txt, [`file`] from a `tokenizer.json`. This JSON has no special tokens, so `[MASK]` in a text is plain text and
//! never the special token.

mod byte_symbols;
mod byte_trie;
mod charsmap;
mod encoder;
mod error;
mod expect;
mod extension;
mod file;
mod file_tokens;
pub mod json;
mod library;
mod normalizer;
mod pre_tokenizer;
mod regex_splits;
mod segmenter;
mod segments;
mod sentence_piece;
mod special_tokens;
mod token_table;
pub mod transformers;
mod unigram;
mod word_cache;
mod words;

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tokenizers::pipeline::PipelineToken;

pub use encoder::Encoder;
pub use error::TokenizerError;
pub use extension::VocabularyExtension;
pub use file::TokenizerFile;
pub use json::{MASK, MAX_WORD_CHARS, tokenizer_json};
pub use segmenter::{Segmenter, replace};
pub use sentence_piece::{SentencePieceRules, tokenizer_json as tokenizer_json_of_sentence_piece};
pub use token_table::{TokenTable, TokenizerModel};

use library::Library;
use unigram::UnigramWords;
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

/// Tokenizer; cheap to share between threads.
pub struct Tokenizer {
    model: Model,
    library: Library,
    tokens: TokenTable,
    origin: String,
    lowercase: bool,
    /// Content of a tokenizer.json, and its tokenizer with special tokens.
    file: Option<(Arc<TokenizerFile>, OnceLock<Library>)>,
}

/// Model of a tokenizer, with what its encoder needs.
enum Model {
    WordPiece(Words),
    /// If `adds_space`, each text starts with a space.
    Bpe {
        adds_space: bool,
    },
    /// Each word has the same ids in any context. The thread that builds the library sets the words.
    Unigram(Arc<OnceLock<UnigramWords>>),
    /// The ids of a word depend on its context.
    ContextualUnigram,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Tokenizer");
        text.field("model", &self.tokens.model()).field("size", &self.size()).field("lowercase", &self.lowercase);
        text.finish()
    }
}

impl Tokenizer {
    /// Reads a vocab.txt or tokenizer.json. Each line of a vocab.txt is a token, and the line number from 0 is the id of
    /// the token. `lowercase` is the case handling of a vocab.txt.
    pub fn from_vocab_file(path: impl AsRef<Path>, lowercase: bool) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::named(&bytes, lowercase, &path.display().to_string())
    }

    /// Creates a tokenizer from the bytes of a vocab.txt or tokenizer.json.
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
        if TokenizerFile::is_json(bytes) {
            return TokenizerFile::read(bytes, origin).map(|file| Self::from_file(file, origin));
        }
        let tokens = TokenTable::read(bytes, origin)?;
        let texts = Arc::new(tokens.texts.clone());
        let words = Words::new(&texts, tokens.special.unk, lowercase);
        let library = Library::begin(move || {
            tokenizers::from_json(&json::canonical(&texts, lowercase)).map_err(|error| error.to_string())
        });
        Ok(Self { model: Model::WordPiece(words), library, tokens, origin: origin.to_owned(), lowercase, file: None })
    }

    fn from_file(file: TokenizerFile, origin: &str) -> Self {
        let file = Arc::new(file);
        let words = Arc::new(OnceLock::new());
        let has_words = file.keeps_words && !file.has_added_words;
        let model = match file.tokens.model() {
            TokenizerModel::Unigram if has_words => Model::Unigram(Arc::clone(&words)),
            TokenizerModel::Unigram => Model::ContextualUnigram,
            _ => Model::Bpe { adds_space: file.adds_space },
        };
        let read = Arc::clone(&file);
        let build = move || {
            let built = read.build_plain()?;
            if let Some(found) = has_words.then(|| UnigramWords::new(&built)).flatten() {
                words.get_or_init(|| found);
            }
            Ok(built)
        };
        Self {
            model,
            library: Library::begin(build),
            tokens: file.tokens.clone(),
            origin: origin.to_owned(),
            lowercase: file.lowercase,
            file: Some((file, OnceLock::new())),
        }
    }

    /// Waits until the tokenizer is built. Token ids are valid only if this succeeds after their text was encoded.
    ///
    /// # Errors
    /// The tokenizers library rejected the vocabulary, or failed to encode a text since then.
    pub fn check(&self) -> Result<(), TokenizerError> {
        if let Err(reason) = self.library.built() {
            return Err(TokenizerError::Build { origin: self.origin.clone(), source: reason.clone().into() });
        }
        let special = self.file.as_ref().and_then(|(_, library)| library.get());
        match self.library.failure().or_else(|| special.and_then(Library::failure)) {
            Some(why) => Err(TokenizerError::Encode { origin: self.origin.clone(), source: why.into() }),
            None => Ok(()),
        }
    }

    /// Returns the token IDs of `text`, without special tokens. A text of 4 GiB or more, which the library rejects,
    /// becomes one `[UNK]`. So does a text that the library fails to encode; [`Tokenizer::check`] then returns the error.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.append(&self.start(text), &mut ids);
        PipelineToken::cast_slice(&ids).to_vec()
    }

    /// Returns the token IDs of a text with masks, without other special tokens. A mask is `[MASK]`, or the text of the
    /// mask token of the vocabulary. Where a tokenizer.json says so, the mask token includes the spaces around it.
    #[must_use]
    pub fn encode_masked(&self, text: &str) -> Vec<u32> {
        let special = self.special();
        let mask = self.piece(special.mask);
        let text = if mask == MASK { Cow::Borrowed(text) } else { Cow::Owned(text.replace(MASK, mask)) };
        match self.special_library() {
            Some(library) => {
                let mut ids = Vec::new();
                if !library.append(&text, &mut ids) {
                    ids.push(special.unk.into());
                }
                PipelineToken::cast_slice(&ids).to_vec()
            }
            None => self.encode_between(&text, mask),
        }
    }

    /// Tokenizer of the library with special tokens. None if it cannot encode the text around masks.
    fn special_library(&self) -> Option<&Library> {
        let (file, library) = self.file.as_ref().filter(|(file, _)| !file.adds_space)?;
        let library = library.get_or_init(|| {
            let read = Arc::clone(file);
            let library = Library::begin_with_special(move || read.build_special());
            if let Err(why) = library.built() {
                tracing::warn!(
                    "tokenizer {}: {why}; the mask is the only special token that text may contain",
                    self.origin
                );
            }
            library
        });
        library.built().is_ok().then_some(library)
    }

    /// Token ids of a text with masks, each part between two masks on its own.
    fn encode_between(&self, text: &str, mask: &str) -> Vec<u32> {
        let (before, after) = self.file.as_ref().map_or((false, false), |(file, _)| file.mask_strips);
        let parts: Vec<&str> = text.split(mask).collect();
        let mut ids = Vec::new();
        for (number, mut part) in parts.iter().copied().enumerate() {
            if number > 0 {
                ids.push(self.special().mask);
                part = if after { part.trim_start() } else { part };
            }
            if before && number + 1 < parts.len() {
                part = part.trim_end();
            }
            ids.extend(self.encode(part));
        }
        ids
    }

    /// Returns an encoder for large texts. For WordPiece and Unigram it caches words, and is several times as fast as
    /// [`Tokenizer::encode`].
    #[must_use]
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::new(self)
    }

    fn append(&self, text: &str, ids: &mut Vec<PipelineToken>) {
        if !self.library.append(text, ids) {
            ids.push(self.special().unk.into());
        }
    }

    /// Text with the space that the tokenizer puts before it.
    fn start<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let adds_space = matches!(self.model, Model::Bpe { adds_space: true });
        match adds_space && !text.starts_with(' ') && !text.is_empty() {
            true => Cow::Owned(format!(" {text}")),
            false => Cow::Borrowed(text),
        }
    }

    /// Returns the ids of the special tokens.
    #[must_use]
    pub const fn special(&self) -> Special {
        self.tokens.special()
    }

    /// Returns the vocabulary size, in tokens.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.tokens.size()
    }

    /// True if text is lowercased, and in WordPiece stripped of accents.
    #[must_use]
    pub const fn lowercase(&self) -> bool {
        self.lowercase
    }

    /// Returns the content of a tokenizer.json; none for WordPiece.
    #[must_use]
    pub fn file(&self) -> Option<&TokenizerFile> {
        self.file.as_ref().map(|(file, _)| &**file)
    }

    /// Returns all tokens, in id order.
    #[must_use]
    pub fn tokens(&self) -> &TokenTable {
        &self.tokens
    }

    /// Returns the token with this id, or `[UNK]` for an id outside the vocabulary.
    #[must_use]
    pub fn piece(&self, id: u32) -> &str {
        self.tokens.text(id)
    }

    /// True if this token continues a word; see [`TokenTable::is_continuation`].
    #[must_use]
    pub fn is_continuation(&self, id: u32) -> bool {
        self.tokens.is_continuation(id)
    }

    /// Decodes token IDs to text; see [`TokenTable::decode`].
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokens.decode(ids)
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
