//! Words that were seen, with their ids: a memory in front of the library.
//!
//! What lies between two spaces or punctuation marks gets the same ids wherever it stands: cleaning, decomposition and
//! lowercasing work character by character or within a run of combining marks, and BERT splits at every space and
//! around every punctuation mark. So a text is cut at the spaces and marks that are cheap to see, and each part is
//! looked up by its bytes; what is not there the library encodes. tests/tokenizer.rs holds this to be exact.

/// Bytes of a part that can be remembered.
pub const LONGEST: usize = 31;
/// Ids of a part that can be remembered.
const MOST_IDS: usize = 7;
/// Slots: 8 MiB, which holds the words of a large corpus that make up nearly all of its text.
const SLOTS: usize = 1 << 17;

/// A table of words; a word takes the place of another with the same slot.
pub struct Memo {
    slots: Vec<Slot>,
}

/// One word: a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Slot {
    key: Key,
    count: u32,
    ids: [u32; MOST_IDS],
}

/// The bytes of a word, zeros behind them, and its length in the last byte.
pub type Key = [u64; 4];

impl Memo {
    /// An empty one.
    pub fn new() -> Self {
        // No word has the length 255.
        let empty = Slot { key: [u64::MAX; 4], count: 0, ids: [0; MOST_IDS] };
        Self { slots: vec![empty; SLOTS] }
    }

    /// Appends the ids of `part` to `output`; `encode` appends those that are not known.
    #[inline]
    pub fn encode<T: Copy + From<u32> + Into<u32>>(
        &mut self,
        part: &str,
        output: &mut Vec<T>,
        encode: impl FnOnce(&str, &mut Vec<T>),
    ) {
        if part.len() > LONGEST {
            encode(part, output);
            return;
        }
        let key = key(part.as_bytes());
        let slot = &mut self.slots[index(key, SLOTS)];
        if slot.key == key {
            output.extend(slot.ids[..slot.count as usize].iter().map(|&id| T::from(id)));
            return;
        }
        let start = output.len();
        encode(part, output);
        let found = &output[start..];
        if found.len() <= MOST_IDS {
            let mut ids = [0; MOST_IDS];
            ids.iter_mut().zip(found).for_each(|(id, &found)| *id = found.into());
            *slot = Slot { key, count: found.len() as u32, ids };
        }
    }
}

/// The key of at most [`LONGEST`] bytes.
#[inline]
pub fn key(part: &[u8]) -> Key {
    let mut bytes = [0_u8; 32];
    bytes[..part.len()].copy_from_slice(part);
    bytes[LONGEST] = part.len() as u8;
    let mut key = [0; 4];
    key.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, &bytes)| *word = u64::from_le_bytes(bytes));
    key
}

/// Its place among `slots`, a power of two.
#[inline]
pub fn index(key: Key, slots: usize) -> usize {
    let mixed = key.iter().fold(0_u64, |sum, &word| (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95));
    (mixed >> (u64::BITS - slots.trailing_zeros())) as usize
}

/// What a byte does to the part it stands in.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Belongs to it.
    Inside,
    /// Ends it and is nothing itself.
    Space,
    /// Ends it and is a part by itself.
    Mark,
    /// May begin one of the typographic marks.
    Lead,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Inside; 256];
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_punctuation() {
            classes[byte] = Class::Mark;
        }
        byte += 1;
    }
    classes[b' ' as usize] = Class::Space;
    classes[b'\n' as usize] = Class::Space;
    classes[b'\r' as usize] = Class::Space;
    classes[b'\t' as usize] = Class::Space;
    classes[0xe2] = Class::Lead;
    classes
};

/// Calls `each` for every part of `text`, in order.
#[inline]
pub fn parts<'a>(text: &'a str, mut each: impl FnMut(&'a str)) {
    let bytes = text.as_bytes();
    let (mut start, mut at) = (0, 0);
    while at < bytes.len() {
        let length = match CLASSES[usize::from(bytes[at])] {
            Class::Inside => 0,
            Class::Space | Class::Mark => 1,
            Class::Lead if is_mark(&bytes[at..]) => 3,
            Class::Lead => 0,
        };
        if length == 0 {
            at += 1;
            continue;
        }
        if start < at {
            each(&text[start..at]);
        }
        if CLASSES[usize::from(bytes[at])] != Class::Space {
            each(&text[at..at + length]);
        }
        at += length;
        start = at;
    }
    if start < at {
        each(&text[start..]);
    }
}

/// The typographic marks of running text: – — ‘ ’ “ ” …
fn is_mark(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0x93 | 0x94 | 0x98 | 0x99 | 0x9c | 0x9d | 0xa6, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_spaces_and_marks() {
        let mut found = Vec::new();
        parts("“Don’t—é, x\u{a0}y…\t z”", |part| found.push(part));
        assert_eq!(found, ["“", "Don", "’", "t", "—", "é", ",", "x\u{a0}y", "…", "z", "”"]);
    }

    #[test]
    fn a_word_is_encoded_once_and_keys_tell_all_apart() {
        let mut memo = Memo::new();
        let mut calls = 0;
        let mut output: Vec<u32> = Vec::new();
        for part in ["a", "a\0", "a", "", "a\0", &"x".repeat(31), &"x".repeat(31)] {
            memo.encode(part, &mut output, |part, output| {
                calls += 1;
                output.push(part.len() as u32);
            });
        }
        assert_eq!((calls, output), (4, vec![1, 2, 1, 0, 2, 31, 31]));
        memo.encode(&"x".repeat(32), &mut Vec::<u32>::new(), |_, _| calls += 1);
        memo.encode(&"x".repeat(32), &mut Vec::<u32>::new(), |_, _| calls += 1);
        assert_eq!(calls, 6);
    }
}
