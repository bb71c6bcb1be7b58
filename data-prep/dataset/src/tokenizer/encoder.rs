//! Encoder of large texts.

use tokenizers::pipeline::PipelineToken;

use super::segments::{BertSegments, SpaceSegments};
use super::unigram::UnigramScratch;
use super::word_cache::WordCache;
use super::{Model, Tokenizer};

/// Encoder with reusable memory; see [`Tokenizer::encoder`].
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    word_cache: WordCache,
    unigram_scratch: UnigramScratch,
    ids: Vec<u32>,
    /// Library output for one segment of the text.
    library_ids: Vec<PipelineToken>,
    /// Text after a space.
    text: String,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            word_cache: WordCache::new(),
            unigram_scratch: UnigramScratch::default(),
            ids: Vec::new(),
            library_ids: Vec::new(),
            text: String::new(),
        }
    }

    /// Returns the token IDs of `text`, without special tokens. The result is the same as that of
    /// [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &str) -> &[u32] {
        self.encode_joined(&self.tokenizer.start(text))
    }

    /// Returns the token IDs of a text that follows other text after a space, such as the next sentence of a document.
    /// Byte-level BPE puts this space into the first token.
    pub fn encode_next(&mut self, text: &str) -> &[u32] {
        if !matches!(self.tokenizer.model, Model::Bpe { adds_space: false }) || text.is_empty() {
            return self.encode(text);
        }
        let mut next = std::mem::take(&mut self.text);
        next.clear();
        next.push(' ');
        next.push_str(text);
        self.encode(&next);
        self.text = next;
        &self.ids
    }

    /// Returns the token IDs of a text that follows other text without a space, such as the next sentence of a Chinese
    /// document. Byte-level BPE starts it without a space. For other models, the result is that of [`Encoder::encode`].
    pub fn encode_joined(&mut self, text: &str) -> &[u32] {
        let Self { tokenizer, word_cache, unigram_scratch, ids, library_ids, .. } = self;
        ids.clear();
        let mut library = |part: &str, ids: &mut Vec<u32>| {
            library_ids.clear();
            tokenizer.append(part, library_ids);
            ids.extend_from_slice(PipelineToken::cast_slice(library_ids));
        };
        match &tokenizer.model {
            Model::WordPiece(words) => word_cache.encode(text, BertSegments::new(text), ids, |part, ids| {
                if !words.append(part, ids) {
                    library(part, ids);
                }
            }),
            Model::Unigram(words) => word_cache.encode(text, SpaceSegments::new(text), ids, |part, ids| {
                let built = tokenizer.library.built().as_ref().ok().zip(words.get());
                if !built.is_some_and(|(library, words)| words.append(library, part, unigram_scratch, ids)) {
                    library(part, ids);
                }
            }),
            Model::ContextualUnigram | Model::Bpe { .. } => library(text, ids),
        }
        ids
    }
}
