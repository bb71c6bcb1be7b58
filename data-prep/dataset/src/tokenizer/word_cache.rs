//! Cache of encoded words in front of the tokenizers library.
//!
//! The caller splits a text into segments that have the same ids in any context ([`super::segments`]). The cache looks
//! up each segment by its bytes, and the caller encodes segments that are not cached.

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

    /// Appends the ids of `text` to `output`. `segments` are the byte ranges of its segments. Calls `encode` to append
    /// the ids of a segment that is not cached.
    pub fn encode(
        &mut self,
        text: &str,
        mut segments: impl Iterator<Item = (usize, usize)>,
        output: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.text.resize(text.len() + KEY, 0);
        loop {
            self.next.clear();
            self.next.extend(segments.by_ref().take(SEGMENT_BATCH));
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

#[cfg(test)]
mod tests {
    use super::super::segments::BertSegments;
    use super::*;

    #[test]
    fn a_word_is_encoded_once() {
        let mut word_cache = WordCache::new();
        let (mut calls, mut output) = (0, Vec::new());
        let mut encode = |text: &str| {
            word_cache.encode(text, BertSegments::new(text), &mut output, |part, output| {
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
