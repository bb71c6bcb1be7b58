//! SHA-256 (sha2 selects CPU instructions at run time), and XXH3 as a faster non-cryptographic hash.

use std::hash::Hasher as _;

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// Incremental SHA-256.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Creates a hasher without input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest as 64 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Incremental 64-bit XXH3, several times faster than SHA-256. It is not cryptographic. Use it to detect accidental
/// changes of bytes that were verified before.
#[derive(Clone, Default)]
pub struct Xxh3(twox_hash::xxhash3_64::Hasher);

impl Xxh3 {
    /// Creates a hasher without input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Returns the hash.
    pub fn finish(self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_matches_a_known_digest() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn xxh3_does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mark = |piece: usize| {
            let mut mark = Xxh3::new();
            bytes.chunks(piece).for_each(|piece| mark.update(piece));
            mark.finish()
        };
        // Empty input: xxHash 0.8, `xxhsum -H3`.
        assert_eq!(Xxh3::new().finish(), 0x2d06_8005_38d3_94c2);
        assert!([1, 7, 64, 1000].map(mark).iter().all(|found| *found == mark(5000)));
    }
}
