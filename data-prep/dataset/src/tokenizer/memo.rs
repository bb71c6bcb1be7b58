//! Words that were seen, with their ids: a memory in front of the library.
//!
//! What lies between two spaces or punctuation marks gets the same ids wherever it stands: cleaning, decomposition and
//! lowercasing work character by character or within a run of combining marks, and BERT splits at every space and
//! around every punctuation mark. So a text is cut at the spaces and marks that are cheap to see, and each part is
//! looked up by its bytes; what is not there the library encodes. data-prep/tests/tokenizer.rs holds this to be exact.

/// Bytes of a part that can be remembered.
pub const LONGEST: usize = 31;
/// Ids of a part that can be remembered.
const MOST_IDS: usize = 7;
/// Parts that are cut off at once, before their slots are looked at: so the processor waits for many slots at a time.
const AT_ONCE: usize = 64;
/// Slots: 8 MiB, which holds the words of a large corpus that make up nearly all of its text.
const SLOTS: usize = 1 << 17;

/// A table of words; a word takes the place of another with the same slot.
pub struct Memo {
    slots: Vec<Slot>,
    /// Where the next parts of the text start and end.
    next: Vec<(usize, usize)>,
    /// The text, and behind it as many zeros as a key is long.
    text: Vec<u8>,
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

/// Bytes of a key.
const KEY: usize = size_of::<Key>();

impl Memo {
    /// An empty one.
    pub fn new() -> Self {
        // No word has the length 255.
        let empty = Slot { key: [u64::MAX; 4], count: 0, ids: [0; MOST_IDS] };
        Self { slots: vec![empty; SLOTS], next: Vec::with_capacity(AT_ONCE), text: Vec::new() }
    }

    /// Appends the ids of `text` to `output`; `encode` appends those of a part that is not known.
    pub fn encode(&mut self, text: &str, output: &mut Vec<u32>, mut encode: impl FnMut(&str, &mut Vec<u32>)) {
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.text.resize(text.len() + KEY, 0);
        let mut parts = Parts { text: text.as_bytes(), at: 0 };
        loop {
            self.next.clear();
            self.next.extend(parts.by_ref().take(AT_ONCE));
            if self.next.is_empty() {
                return;
            }
            for &(start, end) in &self.next {
                if end - start > LONGEST {
                    encode(&text[start..end], output);
                    continue;
                }
                let key = key_of(self.text[start..].first_chunk().unwrap_or(&[0; KEY]), end - start);
                let slot = &mut self.slots[index(key, SLOTS)];
                if slot.key != key {
                    slot.take(key, output, |output| encode(&text[start..end], output));
                } else if slot.count == 1 {
                    output.push(slot.ids[0]);
                } else {
                    output.extend_from_slice(&slot.ids[..slot.count as usize]);
                }
            }
        }
    }
}

impl Slot {
    /// Appends the ids of a word that is not here, by `encode`; it is here from now on.
    fn take(&mut self, key: Key, output: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        let start = output.len();
        encode(output);
        let found = &output[start..];
        if found.len() <= MOST_IDS {
            *self = Self { key, count: found.len() as u32, ids: [0; MOST_IDS] };
            self.ids[..found.len()].copy_from_slice(found);
        }
    }
}

/// The key of at most [`LONGEST`] bytes.
#[inline]
pub fn key(part: &[u8]) -> Key {
    let mut bytes = [0; KEY];
    bytes[..part.len()].copy_from_slice(part);
    key_of(&bytes, part.len())
}

/// The key of the first `length` bytes, at most [`LONGEST`].
#[inline]
fn key_of(bytes: &[u8; KEY], length: usize) -> Key {
    let mut key = [0; 4];
    for ((word, bytes), mask) in key.iter_mut().zip(bytes.as_chunks().0).zip(MASKS[length]) {
        *word = u64::from_le_bytes(*bytes) & mask;
    }
    key[3] |= (length as u64) << 56;
    key
}

/// The bits of a key that a word of each length fills.
static MASKS: [Key; KEY] = {
    let mut masks = [[0; 4]; KEY];
    let mut length = 0;
    while length < KEY {
        let mut byte = 0;
        while byte < length {
            masks[length][byte / 8] |= 0xff << (byte % 8 * 8);
            byte += 1;
        }
        length += 1;
    }
    masks
};

/// Its place among `slots`, a power of two.
#[inline]
pub fn index(key: Key, slots: usize) -> usize {
    let [a, b, c, d] = key;
    let one = (a ^ c.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let other = (b ^ d.rotate_left(29)).wrapping_mul(0x517c_c1b7_2722_0a95);
    ((one ^ other) >> (u64::BITS - slots.trailing_zeros())) as usize
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

/// The start and the end of every part of a text, in order.
struct Parts<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parts<'_> {
    fn class(&self) -> Option<Class> {
        self.text.get(self.at).map(|&byte| CLASSES[usize::from(byte)])
    }
}

impl Iterator for Parts<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        while self.class() == Some(Class::Space) {
            self.at += 1;
        }
        let start = self.at;
        let mark = loop {
            match self.class() {
                None if start == self.at => return None,
                None | Some(Class::Space) => break 0,
                Some(Class::Mark) => break 1,
                Some(Class::Lead) if is_mark(&self.text[self.at..]) => break 3,
                Some(Class::Inside | Class::Lead) => self.at += 1,
            }
        };
        if start == self.at {
            self.at += mark;
        }
        Some((start, self.at))
    }
}

/// Whether `bytes` begin with one of the typographic marks of running text: – — ‘ ’ “ ” …
pub fn is_mark(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0x93 | 0x94 | 0x98 | 0x99 | 0x9c | 0x9d | 0xa6, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_spaces_and_marks() {
        let text = "“Don’t—é, x\u{a0}y…\t z”";
        let found: Vec<&str> = Parts { text: text.as_bytes(), at: 0 }.map(|(start, end)| &text[start..end]).collect();
        assert_eq!(found, ["“", "Don", "’", "t", "—", "é", ",", "x\u{a0}y", "…", "z", "”"]);
    }

    #[test]
    fn a_word_is_encoded_once_and_keys_tell_all_apart() {
        let mut memo = Memo::new();
        let (mut calls, mut output) = (0, Vec::new());
        let mut encode = |text: &str| {
            memo.encode(text, &mut output, |part, output| {
                calls += 1;
                output.push(part.len() as u32);
            });
            calls
        };
        let longest = "x".repeat(31);
        let counts = ["a", "a\0", "a", "a a\0", "", &longest, &longest].map(&mut encode);
        assert_eq!(counts, [1, 2, 2, 2, 2, 3, 3]);
        let longer = "x".repeat(32);
        assert_eq!([&longer, &longer].map(|text| encode(text)), [4, 5]);
        assert_eq!(output, [1, 2, 1, 1, 2, 31, 31, 32, 32]);
    }
}
