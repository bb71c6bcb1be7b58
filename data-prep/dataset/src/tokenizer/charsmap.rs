//! Character map of SentencePiece: the `precompiled_charsmap` of a normalizer.
//!
//! It is base64 of the size of a trie in bytes (u32), the units of the trie (u32), and texts that end with NUL; numbers
//! are little-endian. The trie is a double array of darts-clone: an entry maps the UTF-8 bytes of some characters to the
//! offset of a text. The tokenizers library follows the trie without checks, so a damaged one is an error here.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Decoder with the rules of the tokenizers library.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Bits of a unit that equal the byte for which it is reached.
const LABEL: u32 = 1 << 31 | 0xff;
/// Flag of a unit that has a value.
const HAS_VALUE: u32 = 1 << 8;
/// Bits of a value.
const VALUE: u32 = (1 << 31) - 1;

/// Character map whose trie and texts are valid.
pub struct Charsmap {
    units: Vec<u32>,
    texts: String,
}

impl Charsmap {
    /// Reads a map.
    ///
    /// # Errors
    /// The map is damaged.
    pub fn read(base64: &str) -> Result<Self, String> {
        let bytes = BASE64.decode(base64).map_err(|error| format!("it is not base64: {error}"))?;
        let (size, rest) = bytes.split_first_chunk().ok_or("it ends within the size of the trie")?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, texts) = rest.split_at_checked(size).ok_or_else(|| {
            format!("the size of the trie is {size} bytes; expected at most the {} bytes after it", rest.len())
        })?;
        let (units, []) = trie.as_chunks() else {
            return Err(format!("the size of the trie is {size} bytes; expected a multiple of 4"));
        };
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let texts = std::str::from_utf8(texts).map_err(|error| format!("the texts are not UTF-8: {error}"))?;
        let map = Self { units, texts: texts.to_owned() };
        map.check().map(|()| map)
    }

    /// Follows each path of the trie.
    fn check(&self) -> Result<(), String> {
        let outside = |unit: usize| format!("the trie refers to unit {unit}; expected one below {}", self.units.len());
        let mut pending = vec![self.root().ok_or("the trie is empty")?];
        let mut found = vec![false; self.units.len()];
        while let Some(state) = pending.pop() {
            match found.get_mut(state) {
                Some(true) => continue,
                Some(found) => *found = true,
                None => return Err(outside(state)),
            }
            for byte in 1..=u8::MAX {
                let at = state ^ usize::from(byte);
                let unit = *self.units.get(at).ok_or_else(|| outside(at))?;
                if unit & LABEL != u32::from(byte) {
                    continue;
                }
                let next = at ^ offset(unit);
                pending.push(next);
                if unit & HAS_VALUE != 0 {
                    let value = *self.units.get(next).ok_or_else(|| outside(next))? & VALUE;
                    if !self.texts.is_char_boundary(value as usize) {
                        return Err(format!("the trie refers to byte {value} of the texts, where no character starts"));
                    }
                }
            }
        }
        Ok(())
    }

    fn root(&self) -> Option<usize> {
        self.units.first().map(|unit| offset(*unit))
    }

    /// Text that replaces these characters: that of the shortest entry with which they start.
    pub fn get(&self, characters: &str) -> Option<&str> {
        let mut state = self.root()?;
        for byte in characters.bytes().take_while(|byte| *byte != 0) {
            state ^= usize::from(byte);
            let unit = *self.units.get(state)?;
            if unit & LABEL != u32::from(byte) {
                return None;
            }
            state ^= offset(unit);
            if unit & HAS_VALUE != 0 {
                let start = self.units.get(state)? & VALUE;
                return self.texts.get(start as usize..)?.split('\0').next();
            }
        }
        None
    }
}

/// Distance from a unit to its children, as an exclusive or.
const fn offset(unit: u32) -> usize {
    (unit as usize >> 10) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
mod tests {
    use tokenizers::normalizers::precompiled::Precompiled;

    use super::*;
    use crate::random::Key;

    /// Map from `a` to the text at `value`. The children of the root start at unit 256, those of `a` at `child`.
    fn charsmap(root: u32, child: u32, value: u32, texts: &[u8]) -> Result<Charsmap, String> {
        Charsmap::read(&BASE64.encode(bytes(root, child, value, texts)))
    }

    fn bytes(root: u32, child: u32, value: u32, texts: &[u8]) -> Vec<u8> {
        let mut units = [0; 768];
        units[0] = root << 10;
        units[256 ^ usize::from(b'a')] = u32::from(b'a') | HAS_VALUE | (256 ^ u32::from(b'a') ^ child) << 10;
        units[512] = 1 << 31 | value;
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(texts);
        bytes
    }

    #[test]
    fn characters_give_the_text_of_the_shortest_entry() {
        let map = charsmap(256, 512, 3, "é\0bc\0d".as_bytes()).unwrap();
        assert_eq!(
            ["a", "ab", "aa", "b", "", "\0"].map(|text| map.get(text)),
            [Some("bc"), Some("bc"), Some("bc"), None, None, None]
        );
        assert_eq!(charsmap(256, 512, 7, "é\0bc\0d".as_bytes()).unwrap().get("a"), Some(""));
    }

    #[test]
    fn damaged_maps_are_refused() {
        for (map, message) in [
            (charsmap(256, 512, 8, "é\0bc\0d".as_bytes()), "refers to byte 8 of the texts"),
            (charsmap(256, 512, 1, "é\0bc\0d".as_bytes()), "refers to byte 1 of the texts, where no character starts"),
            (charsmap(256, 512, 0, b"\xff\0"), "the texts are not UTF-8"),
            (charsmap(1024, 512, 0, b""), "the trie refers to unit 1024; expected one below 768"),
            (charsmap(256, 4096, 0, b""), "the trie refers to unit 4096; expected one below 768"),
            (Charsmap::read("?"), "it is not base64"),
            (Charsmap::read(""), "it ends within the size of the trie"),
            (Charsmap::read(&BASE64.encode([0; 8])), "the trie is empty"),
            (Charsmap::read(&BASE64.encode([6, 0, 0, 0, 0, 0, 0, 0, 0, 0])), "is 6 bytes; expected a multiple of 4"),
            (Charsmap::read(&BASE64.encode([255; 8])), "is 4294967295 bytes; expected at most the 4 bytes after it"),
        ] {
            let error = map.err().unwrap_or_default();
            assert!(error.contains(message), "{message}: {error:?}");
        }
    }

    /// The library does not panic with a damaged map that is accepted.
    #[test]
    fn characters_have_the_text_of_the_library() {
        let good = bytes(256, 512, 3, "é\0bc\0d".as_bytes());
        let used: Vec<usize> = (0..good.len()).filter(|at| *at < 8 || good[*at] != 0).collect();
        let mut accepted = 0;
        for seed in 0..5_000 {
            let mut rng = Key::new(seed).rng();
            let mut bytes = good.clone();
            for _ in 0..1 + rng.below(3) {
                bytes[used[rng.below(used.len() as u64) as usize]] = rng.below(256) as u8;
            }
            let Ok(map) = Charsmap::read(&BASE64.encode(&bytes)) else { continue };
            accepted += 1;
            let library = Precompiled::from(&bytes).unwrap();
            for text in
                (0..256).filter_map(char::from_u32).flat_map(|c| [c.to_string(), format!("{c}a"), format!("a{c}")])
            {
                assert_eq!(map.get(&text), library.transform(&text), "{seed} {text:?}");
            }
        }
        assert!((500..4_500).contains(&accepted), "{accepted} maps");
    }
}
