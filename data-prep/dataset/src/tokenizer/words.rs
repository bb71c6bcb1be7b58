//! Words of ASCII letters and digits and single marks, which are nearly all that English text has, by WordPiece's own rule: the
//! longest piece first, again and again, and `[UNK]` for a word that cannot be spelt so. On them BERT's cleaning does nothing but
//! lowercase, so that the library's way is longer than the work. data-prep/tests/tokenizer.rs holds this to be equal to it.

use super::json::PREFIX;
use super::memo::{Key, index, is_mark, key};

/// Bytes of a word that is encoded here.
const LONGEST: usize = super::memo::LONGEST;
/// In a key's last byte, beside the length: the piece goes on a word.
const CONTINUES: u64 = 0x80 << 56;

/// The pieces that such words can be made of.
#[derive(Debug)]
pub struct Words {
    /// By hash, each in the first free slot from its own on; a power of two, at least half of them free.
    slots: Vec<Option<(Key, u32)>>,
    /// Bytes of the longest piece.
    longest: usize,
    unk: u32,
    lowercase: bool,
}

impl Words {
    /// Of a vocabulary.
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

    /// Appends the ids of `word`; `false` if it is none that is encoded here.
    pub fn append(&self, word: &str, ids: &mut Vec<u32>) -> bool {
        let mut bytes = [0; LONGEST];
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

    fn find(&self, key: Key) -> Option<u32> {
        for slot in self.probe(key) {
            let (other, id) = self.slots[slot]?;
            if other == key {
                return Some(id);
            }
        }
        None
    }

    /// The slots in which a key may be, in order.
    fn probe(&self, key: Key) -> impl Iterator<Item = usize> {
        let mask = self.slots.len() - 1;
        let first = index(key, self.slots.len());
        (0..=mask).map(move |step| (first + step) & mask)
    }
}

fn mark(text: &[u8], continues: bool) -> Key {
    let mut key = key(text);
    key[3] |= if continues { CONTINUES } else { 0 };
    key
}

fn is_word(text: &[u8]) -> bool {
    match text {
        [mark] if mark.is_ascii_punctuation() => true,
        [_, _, _] if is_mark(text) => true,
        _ => (1..=LONGEST).contains(&text.len()) && text.iter().all(u8::is_ascii_alphanumeric),
    }
}
