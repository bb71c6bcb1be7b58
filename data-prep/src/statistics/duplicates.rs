//! Exact duplicates of samples, found by hash in bounded memory.

use std::collections::HashMap;

use twox_hash::XxHash3_64;

/// Maximum number of hashes in the table. With 25 bytes each at a load of 7/8, the table needs 210 MB.
pub const MAX_HASHES: usize = (1 << 23) / 8 * 7;

/// Hash of the token IDs of a sample.
pub fn hash(ids: &[u32]) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    XxHash3_64::oneshot(&bytes)
}

/// Number of occurrences of a sample, and its first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrences {
    pub count: u64,
    pub first_row: u64,
}

/// Occurrences of each hash.
///
/// When the table is full, the half of the hashes whose next bit is 1 is removed and not added again. The table then has
/// all occurrences of a random part of the distinct samples.
#[derive(Debug)]
pub struct DuplicateTable {
    occurrences: HashMap<u64, Occurrences>,
    most: usize,
    /// Number of leading bits that are 0 in all hashes of the table.
    level: u32,
}

impl DuplicateTable {
    /// Creates a table for `samples` samples.
    pub fn new(samples: u64) -> Self {
        Self::with_limit(samples, MAX_HASHES)
    }

    fn with_limit(samples: u64, most: usize) -> Self {
        let capacity = usize::try_from(samples).unwrap_or(usize::MAX).min(most);
        Self { occurrences: HashMap::with_capacity(capacity), most, level: 0 }
    }

    /// Adds samples, as hash and row.
    pub fn add(&mut self, samples: &[(u64, u64)]) {
        for &(hash, row) in samples {
            if hash.leading_zeros() < self.level {
                continue;
            }
            let found = self.occurrences.entry(hash).or_insert(Occurrences { count: 0, first_row: row });
            found.count += 1;
            found.first_row = found.first_row.min(row);
            while self.occurrences.len() >= self.most && self.level < 64 {
                self.level += 1;
                let level = self.level;
                self.occurrences.retain(|hash, _| hash.leading_zeros() >= level);
            }
        }
    }

    /// Fraction of all hashes that the table may contain: 1, 1/2, 1/4, ...
    pub fn share(&self) -> f64 {
        0.5_f64.powi(self.level.cast_signed())
    }

    /// Number of distinct samples in the table.
    pub fn distinct(&self) -> u64 {
        self.occurrences.len() as u64
    }

    /// Number of samples in the table, with repetitions.
    pub fn samples(&self) -> u64 {
        self.occurrences.values().map(|occurrences| occurrences.count).sum()
    }

    /// Most frequent samples that occur more than once, up to `most` of them.
    pub fn most_frequent(&self, most: usize) -> Vec<Occurrences> {
        let mut repeated: Vec<Occurrences> =
            self.occurrences.values().filter(|occurrences| occurrences.count > 1).copied().collect();
        repeated.sort_by_key(|occurrences| (std::cmp::Reverse(occurrences.count), occurrences.first_row));
        repeated.truncate(most);
        repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_dataset::random::mix;

    #[test]
    fn occurrences_are_counted_and_keep_the_first_row() {
        let mut table = DuplicateTable::new(5);
        table.add(&[(hash(&[1, 2]), 7), (hash(&[1]), 3), (hash(&[1, 2]), 4)]);
        table.add(&[(hash(&[1, 2]), 9), (hash(&[2, 1]), 1)]);
        assert_eq!((table.distinct(), table.samples(), table.share()), (3, 5, 1.0));
        assert_eq!(table.most_frequent(5), [Occurrences { count: 3, first_row: 4 }]);
    }

    #[test]
    fn a_full_table_keeps_all_occurrences_of_a_part() {
        let mut table = DuplicateTable::with_limit(20_000, 1000);
        // Each of 10,000 samples occurs twice.
        for row in 0..20_000_u64 {
            table.add(&[(mix(row % 10_000), row)]);
            assert!(table.distinct() < 1000);
        }
        assert!(
            table.samples() == 2 * table.distinct() && table.share() < 0.1,
            "{} {}",
            table.distinct(),
            table.share()
        );
        let estimate = table.distinct() as f64 / table.share();
        assert!((estimate / 10_000.0 - 1.0).abs() < 0.2, "{estimate}");
    }
}
