//! Encoder for words of ASCII letters and digits and for single punctuation marks, which make up nearly all English
//! text.
//!
//! This encoder applies WordPiece directly. It repeatedly takes the longest matching token. If no token matches, the
//! whole word becomes `[UNK]`. On ASCII words, the cleaning step of BERT does nothing except lowercasing, so the full
//! pipeline of the `tokenizers` crate would cost more than the encoding. data-prep/tests/tokenizer.rs tests that the
//! results equal those of the crate.

use super::json::PREFIX;
use super::segments::is_mark;
use super::word_cache::{WordKey, index, key};

/// Maximum length of a word, bytes.
const MAX_WORD_BYTES: usize = super::word_cache::MAX_WORD_BYTES;
/// Flag of a token that continues a word. It is in the last byte of the key, beside the length.
const CONTINUES: u64 = 0x80 << 56;

/// Table of the tokens that consist only of ASCII letters and digits, or of one punctuation mark.
#[derive(Debug)]
pub struct Words {
    /// Open-addressing hash table with linear probing. Its size is a power of two, and it is at most half full.
    slots: Vec<Option<(WordKey, u32)>>,
    /// Length of the longest token, bytes.
    longest: usize,
    unk: u32,
    lowercase: bool,
}

impl Words {
    /// Creates the table of a vocabulary.
    pub fn new(pieces: &[String], unk: u32, lowercase: bool) -> Self {
        let size = (2 * pieces.len()).next_power_of_two();
        let mut words = Self { slots: vec![None; size], longest: 1, unk, lowercase };
        for (piece, id) in pieces.iter().zip(0..) {
            let (text, continues) = match piece.strip_prefix(PREFIX) {
                Some(rest) => (rest, true),
                None => (piece.as_str(), false),
            };
            if is_word(text.as_bytes()) {
                let key = mark(text.as_bytes(), continues);
                let free = words.probe(key).find(|slot| words.slots[*slot].is_none());
                words.slots[free.unwrap_or_default()] = Some((key, id));
                words.longest = words.longest.max(text.len());
            }
        }
        words
    }

    /// Appends the ids of `word`. Returns `false` if this encoder does not support the word.
    pub fn append(&self, word: &str, ids: &mut Vec<u32>) -> bool {
        let mut bytes = [0; MAX_WORD_BYTES];
        let Some(bytes) = bytes.get_mut(..word.len()).filter(|_| is_word(word.as_bytes())) else { return false };
        bytes.copy_from_slice(word.as_bytes());
        if self.lowercase {
            bytes.make_ascii_lowercase();
        }
        let (start, mut rest) = (ids.len(), &*bytes);
        while !rest.is_empty() {
            let continues = rest.len() < word.len();
            let longest = rest.len().min(self.longest);
            let found =
                (1..=longest).rev().find_map(|length| Some((self.find(mark(&rest[..length], continues))?, length)));
            let Some((id, length)) = found else {
                ids.truncate(start);
                ids.push(self.unk);
                break;
            };
            ids.push(id);
            rest = &rest[length..];
        }
        true
    }

    fn find(&self, key: WordKey) -> Option<u32> {
        for slot in self.probe(key) {
            let (other, id) = self.slots[slot]?;
            if other == key {
                return Some(id);
            }
        }
        None
    }

    /// Returns the slots to probe for a key, in order.
    fn probe(&self, key: WordKey) -> impl Iterator<Item = usize> {
        let mask = self.slots.len() - 1;
        let first = index(key, self.slots.len());
        (0..=mask).map(move |step| (first + step) & mask)
    }
}

fn mark(text: &[u8], continues: bool) -> WordKey {
    let mut key = key(text);
    key[3] |= if continues { CONTINUES } else { 0 };
    key
}

fn is_word(text: &[u8]) -> bool {
    match text {
        [mark] if mark.is_ascii_punctuation() => true,
        [_, _, _] if is_mark(text) => true,
        _ => (1..=MAX_WORD_BYTES).contains(&text.len()) && text.iter().all(u8::is_ascii_alphanumeric),
    }
}
