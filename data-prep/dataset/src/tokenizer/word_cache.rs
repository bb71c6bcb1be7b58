//! Cache of encoded words in front of the tokenizers library.
//!
//! Cleaning, decomposition and lowercasing work per character or within a run of combining marks. BERT splits at every
//! space and around every punctuation mark. Therefore text between two spaces or punctuation marks has the same ids in
//! any context.
//!
//! So this cache splits the text at the spaces and marks that are cheap to detect, and looks up each segment by its
//! bytes. The caller encodes segments that are not cached. data-prep/tests/tokenizer.rs tests that the ids equal the
//! ids without a cache.

/// Maximum length of a cached segment, bytes.
pub const MAX_WORD_BYTES: usize = 31;
/// Maximum number of ids of a cached segment.
const MAX_IDS: usize = 7;
/// Number of segments to split off before their slots are accessed, so that the CPU cache misses of many slots overlap.
const SEGMENT_BATCH: usize = 64;
/// Number of slots. They take 8 MiB and suffice for the words that make up nearly all text of a large corpus.
const SLOTS: usize = 1 << 17;

/// Direct-mapped cache of words. A new word replaces the word in its slot.
pub struct WordCache {
    slots: Vec<CachedWord>,
    /// Byte ranges of the next segments.
    next: Vec<(usize, usize)>,
    /// Text, followed by as many zeros as a key has bytes.
    text: Vec<u8>,
}

/// Cached word. It fills one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CachedWord {
    key: WordKey,
    count: u32,
    ids: [u32; MAX_IDS],
}

/// Bytes of a word, zero-padded, with its length in the last byte.
pub type WordKey = [u64; 4];

/// Size of a key, bytes.
const KEY: usize = size_of::<WordKey>();

impl WordCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        // No word has the length 255.
        let empty = CachedWord { key: [u64::MAX; 4], count: 0, ids: [0; MAX_IDS] };
        Self { slots: vec![empty; SLOTS], next: Vec::with_capacity(SEGMENT_BATCH), text: Vec::new() }
    }

    /// Appends the ids of `text` to `output`. Calls `encode` to append the ids of a segment that is not cached.
    pub fn encode(&mut self, text: &str, output: &mut Vec<u32>, mut encode: impl FnMut(&str, &mut Vec<u32>)) {
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.text.resize(text.len() + KEY, 0);
        let mut parts = Segments { text: text.as_bytes(), at: 0 };
        loop {
            self.next.clear();
            self.next.extend(parts.by_ref().take(SEGMENT_BATCH));
            if self.next.is_empty() {
                return;
            }
            for &(start, end) in &self.next {
                if end - start > MAX_WORD_BYTES {
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

impl CachedWord {
    /// Calls `encode` to append the ids of a word, and caches these ids.
    fn take(&mut self, key: WordKey, output: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        let start = output.len();
        encode(output);
        let found = &output[start..];
        if found.len() <= MAX_IDS {
            *self = Self { key, count: found.len() as u32, ids: [0; MAX_IDS] };
            self.ids[..found.len()].copy_from_slice(found);
        }
    }
}

/// Returns the key of at most [`MAX_WORD_BYTES`] bytes.
#[inline]
pub fn key(part: &[u8]) -> WordKey {
    let mut bytes = [0; KEY];
    bytes[..part.len()].copy_from_slice(part);
    key_of(&bytes, part.len())
}

/// Returns the key of the first `length` bytes, at most [`MAX_WORD_BYTES`].
#[inline]
fn key_of(bytes: &[u8; KEY], length: usize) -> WordKey {
    let mut key = [0; 4];
    for ((word, bytes), mask) in key.iter_mut().zip(bytes.as_chunks().0).zip(MASKS[length]) {
        *word = u64::from_le_bytes(*bytes) & mask;
    }
    key[3] |= (length as u64) << 56;
    key
}

/// Masks, indexed by word length. A mask selects the key bits that a word of this length uses.
static MASKS: [WordKey; KEY] = {
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

/// Returns the slot of a key. `slots` is the number of slots, a power of two.
#[inline]
pub fn index(key: WordKey, slots: usize) -> usize {
    let [a, b, c, d] = key;
    let one = (a ^ c.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let other = (b ^ d.rotate_left(29)).wrapping_mul(0x517c_c1b7_2722_0a95);
    ((one ^ other) >> (u64::BITS - slots.trailing_zeros())) as usize
}

/// Effect of a byte on the current segment.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Part of the segment.
    Inside,
    /// Ends the segment. Belongs to no segment.
    Space,
    /// Ends the segment. Is a segment of its own.
    Mark,
    /// May be the first byte of a typographic mark.
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

/// Iterator over the byte ranges of the segments of a text.
struct Segments<'a> {
    text: &'a [u8],
    at: usize,
}

impl Segments<'_> {
    fn class(&self) -> Option<Class> {
        self.text.get(self.at).map(|&byte| CLASSES[usize::from(byte)])
    }
}

impl Iterator for Segments<'_> {
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

/// True if `bytes` start with a typographic mark common in text: – — ‘ ’ “ ” …
pub fn is_mark(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0x93 | 0x94 | 0x98 | 0x99 | 0x9c | 0x9d | 0xa6, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_at_spaces_and_marks() {
        let text = "“Don’t—é, x\u{a0}y…\t z”";
        let found: Vec<&str> =
            Segments { text: text.as_bytes(), at: 0 }.map(|(start, end)| &text[start..end]).collect();
        assert_eq!(found, ["“", "Don", "’", "t", "—", "é", ",", "x\u{a0}y", "…", "z", "”"]);
    }

    #[test]
    fn a_word_is_encoded_once() {
        let mut word_cache = WordCache::new();
        let (mut calls, mut output) = (0, Vec::new());
        let mut encode = |text: &str| {
            word_cache.encode(text, &mut output, |part, output| {
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
