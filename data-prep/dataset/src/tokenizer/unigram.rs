//! Encoder for words of a Unigram model: the most probable tokens, by the Viterbi algorithm.
//!
//! The `tokenizers` crate is several times slower, because it allocates each token. This encoder adds the scores in the
//! order of the crate, so that rounding and ties give the same ids. data-prep/tests/tokenizer_files.rs tests this.
//! Normalizers are those of the crate. ASCII words skip them, if each character is mapped alone.

use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::pipeline::{Normalizer, PipelineModel, PipelineNormalizer, PipelineTokenizer, normalize_all};

use super::byte_trie::ByteTrie;
use super::token_table::WORD_START;

/// Difference between the lowest score and that of an unknown character, as in SentencePiece.
pub const UNKNOWN_PENALTY: f64 = 10.0;
/// Maximum length of a word, bytes. It bounds the memory of an encoder.
const MAX_WORD_BYTES: usize = 1 << 16;

/// Tokens of a Unigram model, with their scores.
#[derive(Debug)]
pub struct UnigramWords {
    trie: ByteTrie,
    /// Scores, by id.
    scores: Vec<f64>,
    unk: u32,
    unk_score: f64,
    /// Normalized ASCII characters. 0 if a character depends on its neighbors, or has another normalized form.
    ascii: [u8; 128],
}

/// Memory of an encoder.
#[derive(Debug, Default)]
pub struct UnigramScratch {
    word: String,
    /// The best path to each byte of the word.
    path: Vec<Step>,
}

/// Last token of the best path to a byte.
#[derive(Debug, Clone, Copy)]
struct Step {
    score: f64,
    start: u32,
    id: u32,
}

/// `Step::start` of a byte that no path reaches.
const UNREACHED: u32 = u32::MAX;

impl UnigramWords {
    /// Reads the model of a tokenizer. None if it is not Unigram.
    pub fn new(tokenizer: &PipelineTokenizer) -> Option<Self> {
        let PipelineModel::Unigram(model) = tokenizer.get_model() else { return None };
        let tokens = model.vocab();
        Some(Self {
            trie: ByteTrie::new(tokens.iter().map(|(text, _)| text.as_str())),
            scores: tokens.iter().map(|(_, score)| *score).collect(),
            unk: u32::try_from(model.unk_id()?).ok()?,
            unk_score: model.min_score - UNKNOWN_PENALTY,
            ascii: std::array::from_fn(|byte| normalized(tokenizer.get_normalizers(), byte as u8).unwrap_or(0)),
        })
    }

    /// Appends the ids of `word`. Returns `false`, and appends nothing, if this encoder does not support the word.
    pub fn append(
        &self,
        tokenizer: &PipelineTokenizer,
        word: &str,
        scratch: &mut UnigramScratch,
        ids: &mut Vec<u32>,
    ) -> bool {
        if word.len() > MAX_WORD_BYTES {
            return false;
        }
        scratch.word.clear();
        scratch.word.push(WORD_START);
        let map = |byte: u8| self.ascii.get(usize::from(byte)).copied().filter(|byte| *byte != 0);
        if !word.is_empty() && word.bytes().all(|byte| map(byte).is_some()) {
            scratch.word.extend(word.bytes().filter_map(map).map(char::from));
            self.append_normalized(&scratch.word, &mut scratch.path, ids);
            return true;
        }
        let Ok(text) = normalize_all(tokenizer.get_normalizers(), word, 0) else { return false };
        let mut rest = &*text;
        while let Some(first) = rest.chars().next() {
            let length = rest[first.len_utf8()..].find(WORD_START).map_or(rest.len(), |at| at + first.len_utf8());
            self.append_normalized(&rest[..length], &mut scratch.path, ids);
            rest = &rest[length..];
        }
        true
    }

    fn append_normalized(&self, word: &str, path: &mut Vec<Step>, ids: &mut Vec<u32>) {
        self.find_path(word.as_bytes(), path);
        let (first, mut end) = (ids.len(), word.len());
        // Consecutive unknown characters are one token.
        let mut unknown_end = None;
        while end > 0 {
            let step = path[end];
            if step.id == self.unk {
                unknown_end.get_or_insert(end);
            } else {
                ids.extend(unknown_end.take().map(|stop| self.unknown(&word[end..stop])));
                ids.push(step.id);
            }
            end = step.start as usize;
        }
        ids.extend(unknown_end.map(|stop| self.unknown(&word[..stop])));
        ids[first..].reverse();
    }

    /// Id of unknown characters. Together they can be a token with a low score.
    fn unknown(&self, text: &str) -> u32 {
        self.trie.get(text.as_bytes()).unwrap_or(self.unk)
    }

    fn find_path(&self, word: &[u8], path: &mut Vec<Step>) {
        path.clear();
        path.resize(word.len() + 1, Step { score: 0.0, start: UNREACHED, id: 0 });
        let mut start = 0;
        while start < word.len() {
            let score = path[start].score;
            let mut reach = |end: usize, token_score: f64, id: u32| {
                let step = &mut path[end];
                let score = token_score + score;
                if step.start == UNREACHED || score > step.score {
                    *step = Step { score, start: start as u32, id };
                }
            };
            let next = start + width(word[start]);
            let mut has_character = false;
            let mut node = ByteTrie::ROOT;
            for (byte, end) in word[start..].iter().zip(start + 1..) {
                let Some(child) = self.trie.child(node, *byte) else { break };
                node = child;
                if let Some(id) = self.trie.id(node) {
                    reach(end, self.scores[id as usize], id);
                    has_character |= end == next;
                }
            }
            if !has_character {
                reach(next, self.unk_score, self.unk);
            }
            start = next;
        }
    }
}

/// Length of the character with this first byte.
const fn width(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

/// Normalized form of an ASCII character in any word of ASCII characters.
fn normalized(normalizers: &[PipelineNormalizer], byte: u8) -> Option<u8> {
    let (PipelineNormalizer::Metaspace(last), normalizers) = normalizers.split_last()? else { return None };
    let mut buffer = [byte];
    for normalizer in normalizers {
        let character = std::str::from_utf8(&buffer).ok()?;
        if let PipelineNormalizer::Replace(replace) = normalizer
            && let ReplacePattern::String(pattern) = replace.pattern()
            && pattern.contains(character)
        {
            return None;
        }
        buffer = [single(&normalizer.normalize(character, 0).ok()?)?];
    }
    let text = last.normalize(std::str::from_utf8(&buffer).ok()?, 0).ok()?;
    single(text.strip_prefix(WORD_START)?)
}

/// The only character of a text, if it is a printable ASCII character.
fn single(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii_graphic() => Some(*byte),
        _ => None,
    }
}
