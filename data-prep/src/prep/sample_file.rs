//! Layout of a sample file, which contains the samples of one or more buckets, sorted by their shuffle keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Number of intervals of equal size in the key space. The index of a sample file has an entry for each non-empty
/// interval.
pub const INTERVALS: usize = 4096;
/// Bytes before the token IDs of a sample: key (8), length (2), start of the second segment (2), pair label (1).
pub const SAMPLE_HEADER_BYTES: usize = 13;

/// JSON trailer of a sample file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SampleFileContents {
    /// Rows and bytes of each non-empty key interval.
    pub intervals: BTreeMap<usize, (u64, u64)>,
    /// Size of all samples, bytes. The counts of all token IDs follow the samples, 8 bytes each.
    pub bytes: u64,
    /// Number of samples.
    pub samples: u64,
    /// Number of tokens, including special tokens.
    pub tokens: u64,
    /// Number of samples whose second segment was replaced (NSP) or swapped (SOP).
    pub positive_pairs: u64,
}

impl SampleFileContents {
    /// Combines the counts of two files.
    pub fn merged_with(mut self, other: &Self) -> Self {
        for (interval, (rows, bytes)) in &other.intervals {
            let sum = self.intervals.entry(*interval).or_default();
            (sum.0, sum.1) = (sum.0 + rows, sum.1 + bytes);
        }
        self.bytes += other.bytes;
        self.samples += other.samples;
        self.tokens += other.tokens;
        self.positive_pairs += other.positive_pairs;
        self
    }
}

/// Returns the index of the interval that contains `key`.
pub fn interval_of(key: u64) -> usize {
    (key >> (u64::BITS - INTERVALS.trailing_zeros())) as usize
}

/// Returns the size of the sample at the start of `bytes`, or `None` if its length field is incomplete.
pub fn sample_bytes(bytes: &[u8], width: usize) -> Option<usize> {
    let length = bytes.get(8..10)?;
    Some(SAMPLE_HEADER_BYTES + usize::from(u16::from_le_bytes([length[0], length[1]])) * width)
}
