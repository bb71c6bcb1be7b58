//! What of a dataset is not drawn: samples that derailed the run, and shards that cannot be read. Part of the training
//! state, so that a run that is started again goes around the same.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What is left out of one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedSamples {
    /// Samples, by their numbers counted over all epochs; in order, without overlap. Those of steps that changed nothing
    /// are among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    samples: Vec<Range<u64>>,
    /// Damaged shards, by their number in the dataset's manifest; from the moment on that they were found.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    shards: BTreeSet<usize>,
}

impl SkippedSamples {
    /// Adds samples; what is there already stays once.
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

    /// Adds a shard; whether it is new.
    pub fn add_shard(&mut self, shard: usize) -> bool {
        self.shards.insert(shard)
    }

    /// Whether anything of `shards` shards is left to draw.
    pub fn leaves_any_of(&self, shards: usize) -> bool {
        self.shards.len() < shards
    }

    /// Whether the sample of this number, which lies in `shard`, is left out.
    pub fn hold(&self, sample: u64, shard: usize) -> bool {
        let after = self.samples.partition_point(|range| range.end <= sample);
        self.shards.contains(&shard) || self.samples.get(after).is_some_and(|range| range.contains(&sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept_in_order_and_once() {
        let mut detours = SkippedSamples::default();
        for range in [8..10, 2..4, 3..6, 10..12, 20..20, 8..9] {
            detours.add(range);
        }
        assert_eq!(detours.samples, [2..6, 8..12]);
        let held: Vec<u64> = (0..14).filter(|sample| detours.hold(*sample, 0)).collect();
        assert_eq!(held, [2, 3, 4, 5, 8, 9, 10, 11]);
    }

    #[test]
    fn shards_are_left_out_whole() {
        let mut detours = SkippedSamples::default();
        assert!(detours.add_shard(1) && !detours.add_shard(1));
        assert!(detours.hold(77, 1) && !detours.hold(77, 0));
        assert!(detours.leaves_any_of(2) && !detours.leaves_any_of(1));
    }
}
