//! How often the tokens of a vocabulary occur in a dataset, estimated from a part of it.

use super::{Dataset, DatasetError, Manifest};

/// Row groups that are read.
const GROUPS: usize = 4;
/// Larger shards are not opened for an estimate: their bytes would be hashed first.
const LARGEST: u64 = 1 << 30;

/// Frequencies of tokens; those that frame and pad samples are not counted.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenUsage {
    counts: Vec<u64>,
    total: u64,
    unknown: u64,
}

impl TokenUsage {
    /// Reads the first row groups of a shard: samples stand in a random order, so that they are a sample of the dataset. `None`
    /// if the shards are not files of this machine, or too large, or there are none.
    ///
    /// # Errors
    /// The shard cannot be read.
    pub fn of(dataset: &Dataset) -> Result<Option<Self>, DatasetError> {
        let Some(shard) = dataset.smallest_local_shard()?.filter(|(_, bytes)| *bytes <= LARGEST) else {
            return Ok(None);
        };
        let groups = dataset.row_groups().iter().enumerate().filter(|(_, group)| group.shard == shard.0);
        let mut ids = Vec::new();
        for (number, _) in groups.take(GROUPS) {
            ids.extend(dataset.read(number)?.input_ids);
        }
        let usage = Self::count(&ids, dataset.manifest());
        Ok((usage.total > 0).then_some(usage))
    }

    fn count(ids: &[u32], manifest: &Manifest) -> Self {
        let mut counts = vec![0_u64; manifest.vocabulary.size];
        // Reading has checked that all ids are in the vocabulary.
        ids.iter().for_each(|&id| counts[id as usize] += 1);
        let special = &manifest.special;
        for id in [special.pad, special.cls, special.sep, special.mask] {
            counts[id as usize] = 0;
        }
        let (total, unknown) = (counts.iter().sum(), counts[special.unk as usize]);
        Self { counts, total, unknown }
    }

    /// The share of `[UNK]`.
    #[must_use]
    pub fn unknown(&self) -> f64 {
        self.unknown as f64 / self.total as f64
    }

    /// The overlap of two distributions over one vocabulary, sum(min(p, q)): 1 if they are equal, 0 if no token is in both.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> f64 {
        let share = |count: u64, total: u64| count as f64 / total as f64;
        let both = self.counts.iter().zip(&other.counts);
        both.map(|(&left, &right)| share(left, self.total).min(share(right, other.total))).sum()
    }
}
