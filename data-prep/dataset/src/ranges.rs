//! Checksums of the byte ranges of a shard. They allow to read and verify a row group without the rest of the file.

use std::fmt;
use std::ops::Range;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::manifest::hex;

/// Byte ranges of a shard: one for each row group, then one for the footer. They are adjacent and cover the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRanges {
    /// Size of each range, bytes.
    pub bytes: Vec<u64>,
    /// SHA-256 of each range.
    pub sha256: Vec<Digest>,
}

/// SHA-256 digest. Text forms have 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl ShardRanges {
    /// Appends a range of `bytes` bytes.
    pub fn push(&mut self, bytes: u64, sha256: Digest) {
        self.bytes.push(bytes);
        self.sha256.push(sha256);
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there is no range. The ranges of a valid manifest are not empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the offsets of range `index` in the file. [`ShardRanges::check`] ensures that the sum does not overflow.
    #[must_use]
    pub fn range(&self, index: usize) -> Range<u64> {
        let start = self.bytes[..index].iter().sum();
        start..start + self.bytes[index]
    }

    /// Checks the ranges of a file of `bytes` bytes with `row_groups` row groups.
    pub(super) fn check(&self, bytes: u64, row_groups: usize) -> Result<(), String> {
        let [sizes, digests] = [self.bytes.len(), self.sha256.len()];
        if [sizes, digests] != [row_groups + 1; 2] {
            return Err(format!(
                "ranges have {sizes} sizes and {digests} checksums, expected {} of each (the row groups and the footer)",
                row_groups + 1
            ));
        }
        let sum = self.bytes.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes));
        if sum != Some(bytes) {
            return Err(format!("the ranges do not add up to the {bytes} bytes of the file"));
        }
        Ok(())
    }
}

impl Digest {
    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&hex(&self.0))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom(format!("the sha256 is {text:?}, expected 64 hexadecimal digits")))
    }
}

/// Parses 64 lower-case hexadecimal digits.
fn parse(text: &str) -> Option<Digest> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().map(digit).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect();
    (text.len() == 64).then_some(bytes)?.try_into().ok().map(Digest)
}
