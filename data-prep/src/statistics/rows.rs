//! Choice and order of the row groups to read.

use lambert_dataset::RowGroup;
use lambert_dataset::random::{Key, Permutation};

use super::ScanOptions;

/// Returns the indices of the row groups to read.
///
/// If all are read, the threads start with different shards, because the first reader of a shard verifies its checksum
/// while the others wait. If some are read, the shards are in random order, and so are the row groups of a shard: the
/// samples of a prepared dataset are shuffled over all shards, so few shards need to be opened.
pub fn chosen(groups: &[RowGroup], rows: u64, options: &ScanOptions<'_>) -> Vec<usize> {
    match options.samples.filter(|samples| *samples < rows) {
        Some(samples) => random(groups, samples, options.seed),
        None => interleaved(groups, options.threads.max(1)),
    }
}

fn interleaved(groups: &[RowGroup], threads: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&index| (groups[index].shard / threads, groups[index].index, groups[index].shard));
    order
}

fn random(groups: &[RowGroup], samples: u64, seed: u64) -> Vec<usize> {
    let key = Key::new(seed);
    let by_shard: Vec<&[RowGroup]> = groups.chunk_by(|a, b| a.shard == b.shard).collect();
    let starts: Vec<usize> = by_shard
        .iter()
        .scan(0, |start, shard| {
            *start += shard.len();
            Some(*start - shard.len())
        })
        .collect();
    let shards = Permutation::new(by_shard.len() as u64, key);
    let shards = (0..by_shard.len() as u64).map(|index| shards.at(index) as usize);
    let all = shards.flat_map(|shard| {
        let order = Permutation::new(by_shard[shard].len() as u64, key.with(shard as u64));
        let start = starts[shard];
        (0..by_shard[shard].len() as u64).map(move |index| start + order.at(index) as usize)
    });
    let mut found = 0;
    let enough = |index: &usize| {
        let is_needed = found < samples;
        found += groups[*index].rows;
        is_needed
    };
    all.take_while(enough).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Vec<RowGroup> {
        let group = |number: u64| RowGroup {
            shard: number as usize / 4,
            index: number as usize % 4,
            rows: 10,
            first_row: 10 * number,
        };
        (0..12).map(group).collect()
    }

    fn options(samples: Option<u64>, seed: u64) -> ScanOptions<'static> {
        ScanOptions { threads: 2, samples, seed, progress: &|_, _| {} }
    }

    #[test]
    fn threads_start_with_different_shards() {
        assert_eq!(chosen(&groups(), 120, &options(None, 1)), [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]);
        assert_eq!(chosen(&groups(), 120, &options(Some(120), 1)).len(), 12);
    }

    #[test]
    fn a_sample_has_enough_rows_of_few_shards() {
        let some = chosen(&groups(), 120, &options(Some(35), 1));
        assert_eq!(some.len(), 4, "{some:?}");
        assert!(some.iter().all(|group| group / 4 == some[0] / 4), "{some:?}");
        assert_eq!(some, chosen(&groups(), 120, &options(Some(35), 1)));
        assert!((2..9).any(|seed| some != chosen(&groups(), 120, &options(Some(35), seed))));
        assert!(chosen(&[], 0, &options(Some(5), 1)).is_empty());
    }
}
