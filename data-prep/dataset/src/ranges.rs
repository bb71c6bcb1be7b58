//! `checksums.json`: checksums of the byte ranges of each shard. They allow to read and verify a row group without the
//! rest of the file. Datasets of earlier versions do not have this file.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::manifest::Manifest;

/// File name.
pub const CHECKSUMS: &str = "checksums.json";
/// Maximum size, bytes: enough for some 14 million row groups.
pub const MAX_CHECKSUMS_BYTES: u64 = 1 << 30;

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Checksums {
    /// Entry of each shard, in the order of the manifest.
    shards: Vec<Entry>,
}

/// Checksums of a shard.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// SHA-256 of the whole shard, as in the manifest.
    shard_sha256: String,
    #[serde(flatten)]
    ranges: ShardRanges,
}

/// Byte ranges of a shard: one for each row group, then one for the footer. They are adjacent and cover the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRanges {
    /// Size of each range, bytes.
    pub range_bytes: Vec<u64>,
    /// SHA-256 of each range.
    pub range_sha256: Vec<Digest>,
}

impl ShardRanges {
    /// Appends a range of `bytes` bytes.
    pub fn push(&mut self, bytes: u64, sha256: Digest) {
        self.range_bytes.push(bytes);
        self.range_sha256.push(sha256);
    }

    /// Index of the footer.
    #[must_use]
    pub fn footer(&self) -> usize {
        self.range_bytes.len().saturating_sub(1)
    }

    /// Returns the offsets of range `index` in the file. [`parse`] ensures that the sum does not overflow.
    #[must_use]
    pub fn range(&self, index: usize) -> Range<u64> {
        let start = self.range_bytes[..index].iter().sum();
        start..start + self.range_bytes[index]
    }

    /// Checks the ranges of a file of `bytes` bytes with `row_groups` row groups.
    fn check(&self, bytes: u64, row_groups: usize) -> Result<(), String> {
        let (counts, expected) = ([self.range_bytes.len(), self.range_sha256.len()], row_groups + 1);
        if counts != [expected; 2] {
            let [sizes, digests] = counts;
            return Err(format!(
                "{sizes} sizes and {digests} checksums of ranges, expected {expected} (the row groups and the footer)"
            ));
        }
        let sum = self.range_bytes.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes));
        match sum == Some(bytes) {
            true => Ok(()),
            false => Err(format!("the sizes of the ranges do not add up to the {bytes} bytes of the file")),
        }
    }
}

/// Serializes `checksums.json` for the shards of `manifest`, in this order.
#[must_use]
pub fn to_json(manifest: &Manifest, ranges: &[ShardRanges]) -> Vec<u8> {
    let shards = manifest.shards.iter().zip(ranges);
    let shards = shards.map(|(shard, ranges)| Entry { shard_sha256: shard.sha256.clone(), ranges: ranges.clone() });
    // Serialization cannot fail for strings and integers.
    let mut bytes = serde_json::to_vec(&Checksums { shards: shards.collect() }).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Parses `checksums.json`, and checks that it belongs to the dataset with this manifest.
///
/// # Errors
/// The message describes the problem.
pub fn parse(bytes: &[u8], manifest: &Manifest) -> Result<Vec<ShardRanges>, String> {
    let Checksums { shards } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let expected = manifest.shards.len();
    if shards.len() != expected {
        return Err(format!("it has {} shards, but the dataset has {expected}", shards.len()));
    }
    for (entry, shard) in shards.iter().zip(&manifest.shards) {
        let name = &shard.path;
        if entry.shard_sha256 != shard.sha256 {
            return Err(format!("{name}: its sha256 is {}, but {} in the manifest", entry.shard_sha256, shard.sha256));
        }
        let checked = entry.ranges.check(shard.bytes, shard.row_groups.len());
        checked.map_err(|message| format!("{name}: {message}"))?;
    }
    Ok(shards.into_iter().map(|entry| entry.ranges).collect())
}
