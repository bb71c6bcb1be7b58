//! Token frequencies of a dataset, estimated from a sample.

use super::{Dataset, DatasetError, Manifest};

/// Maximum number of row groups to read.
const MAX_ROW_GROUPS: usize = 4;
/// Maximum number of bytes whose checksum is verified first: the whole shard, if the dataset has no checksums of row groups.
const MAX_VERIFIED_BYTES: u64 = 1 << 30;

/// Token frequencies, without `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenUsage {
    counts: Vec<u64>,
    total: u64,
    unknown: u64,
}

impl TokenUsage {
    /// Estimates token frequencies from the first row groups of the smallest shard. These rows are a random sample,
    /// because samples are in random order. Returns `None` if the shards are remote, if the smallest shard is too
    /// large, or if it has no tokens.
    ///
    /// # Errors
    /// The shard cannot be read.
    pub fn of(dataset: &Dataset) -> Result<Option<Self>, DatasetError> {
        let Some(shard) = dataset.smallest_local_shard()?.filter(|(_, bytes)| *bytes <= MAX_VERIFIED_BYTES) else {
            return Ok(None);
        };
        let groups = dataset.row_groups().iter().enumerate().filter(|(_, group)| group.shard == shard.0);
        let mut ids = Vec::new();
        for (number, _) in groups.take(MAX_ROW_GROUPS) {
            ids.extend(dataset.read(number)?.input_ids);
        }
        let usage = Self::count(&ids, dataset.manifest());
        Ok((usage.total > 0).then_some(usage))
    }

    fn count(ids: &[u32], manifest: &Manifest) -> Self {
        let mut counts = vec![0_u64; manifest.vocabulary.size];
        // `Dataset::read` has validated the ids.
        ids.iter().for_each(|&id| counts[id as usize] += 1);
        let special = &manifest.special;
        for id in [special.pad, special.cls, special.sep, special.mask] {
            counts[id as usize] = 0;
        }
        let (total, unknown) = (counts.iter().sum(), counts[special.unk as usize]);
        Self { counts, total, unknown }
    }

    /// Returns the fraction of tokens that are `[UNK]`.
    #[must_use]
    pub fn unknown(&self) -> f64 {
        self.unknown as f64 / self.total as f64
    }

    /// Returns the overlap of two distributions over the same vocabulary, sum(min(p, q)). It is 1 if they are equal and
    /// 0 if they are disjoint.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> f64 {
        let share = |count: u64, total: u64| count as f64 / total as f64;
        let both = self.counts.iter().zip(&other.counts);
        both.map(|(&left, &right)| share(left, self.total).min(share(right, other.total))).sum()
    }
}
