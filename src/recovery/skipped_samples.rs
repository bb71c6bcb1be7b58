//! Samples skipped after a rollback, and damaged shards. They are part of the training state, so
//! that a resumed run skips the same samples.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Samples of a mixture, or shards of one dataset, that are skipped. A single dataset has both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedSamples {
    /// Ranges of sample numbers, counted over all epochs. The ranges are sorted and do not overlap.
    /// They include the samples of skipped updates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    samples: Vec<Range<u64>>,
    /// Indices of damaged shards in the manifest of the dataset.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    shards: BTreeSet<usize>,
}

impl SkippedSamples {
    /// Adds a range of samples, merging overlaps.
    pub fn add(&mut self, samples: Range<u64>) {
        self.samples.push(samples);
        self.samples.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in self.samples.drain(..).filter(|range| !range.is_empty()) {
            match merged.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => merged.push(range),
            }
        }
        self.samples = merged;
    }

    /// Adds a shard. Returns true if the shard is new.
    pub fn add_shard(&mut self, shard: usize) -> bool {
        self.shards.insert(shard)
    }

    /// True if a shard of the dataset is not skipped. `shards` is the number of shards of the dataset.
    pub fn has_shards_left(&self, shards: usize) -> bool {
        self.shards.len() < shards
    }

    /// Indices of the skipped shards.
    pub fn shards(&self) -> &BTreeSet<usize> {
        &self.shards
    }

    /// True if sample number `sample` is skipped.
    pub fn contains(&self, sample: u64) -> bool {
        let after = self.samples.partition_point(|range| range.end <= sample);
        self.samples.get(after).is_some_and(|range| range.contains(&sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_merged() {
        let mut skipped = SkippedSamples::default();
        for range in [8..10, 2..4, 3..6, 10..12, 20..20, 8..9] {
            skipped.add(range);
        }
        assert_eq!(skipped.samples, [2..6, 8..12]);
        let held: Vec<u64> = (0..14).filter(|sample| skipped.contains(*sample)).collect();
        assert_eq!(held, [2, 3, 4, 5, 8, 9, 10, 11]);
    }

    #[test]
    fn a_shard_is_added_once() {
        let mut skipped = SkippedSamples::default();
        assert!(skipped.add_shard(1) && !skipped.add_shard(1));
        assert_eq!(skipped.shards(), &BTreeSet::from([1]));
        assert!(skipped.has_shards_left(2) && !skipped.has_shards_left(1));
    }
}
