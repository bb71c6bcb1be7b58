//! The file of a bucket's samples, sorted by their shuffle keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The space of shuffle keys is cut into this many equal intervals for the index of a bucket's samples.
pub const INTERVALS: usize = 4096;
/// Bytes before the ids of a sample: key, length, start of the second segment, pair label.
pub const SAMPLE_HEAD: usize = 13;

/// What a bucket's sample file holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contents {
    /// Rows and bytes of each interval of keys that has any, in order.
    pub intervals: BTreeMap<usize, (u64, u64)>,
    /// Bytes of all samples; behind them stand the counts of every token id, 8 bytes each.
    pub bytes: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens, special pieces included.
    pub tokens: u64,
    /// Samples whose second segment was replaced or swapped.
    pub positive_pairs: u64,
}

impl Contents {
    /// Both together.
    pub fn with(mut self, other: &Self) -> Self {
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

/// Which of the [`INTERVALS`] a key lies in.
pub fn interval(key: u64) -> usize {
    (key >> (u64::BITS - INTERVALS.trailing_zeros())) as usize
}

/// Bytes of the sample that begins here, if that much of it is here as tells it.
pub fn sample_bytes(bytes: &[u8], width: usize) -> Option<usize> {
    let length = bytes.get(8..10)?;
    Some(SAMPLE_HEAD + usize::from(u16::from_le_bytes([length[0], length[1]])) * width)
}
