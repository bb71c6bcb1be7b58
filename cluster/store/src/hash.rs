//! SHA-256, with the processor's instructions where it has them (sha2 asks at run time), and a quicker hash beside it.

use std::hash::Hasher as _;

use sha2::{Digest, Sha256};

/// SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// SHA-256 of what arrives in pieces.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// A hasher that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything seen, as 64 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// XXH3, 64 bits, of what arrives in pieces: several times as quick as SHA-256. It tells whether bytes that were found sound
/// have come again as they were, and nothing of who wrote them.
#[derive(Clone, Default)]
pub struct Mark(twox_hash::xxhash3_64::Hasher);

impl Mark {
    /// A hash that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of everything seen.
    pub fn finish(self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_a_known_message() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_mark_does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mark = |piece: usize| {
            let mut mark = Mark::new();
            bytes.chunks(piece).for_each(|piece| mark.update(piece));
            mark.finish()
        };
        // Of no bytes: xxHash 0.8, `xxhsum -H3`.
        assert_eq!(Mark::new().finish(), 0x2d06_8005_38d3_94c2);
        assert!([1, 7, 64, 1000].map(mark).iter().all(|found| *found == mark(5000)));
    }
}
