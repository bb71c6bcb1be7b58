//! Sample order of an epoch. The row groups are permuted first. Then the rows are permuted within windows of [`WINDOW`]
//! row groups. The seed and the epoch determine both permutations. Because of the windows, a batch needs few row
//! groups. Any index can be looked up directly, so a run resumes at a late step as fast as at an early step.

use std::ops::Range;

use lambert_dataset::random::{Key, Permutation};
pub use lambert_plan::memory::WINDOW;

/// Location of a sample in the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleLocation {
    /// Row group index in the dataset.
    pub row_group: usize,
    /// Row index in the row group.
    pub row: usize,
}

/// Sample order of one epoch.
pub struct EpochOrder {
    epoch: u64,
    /// Permuted row group indices.
    row_groups: Vec<usize>,
    /// Number of rows before each of `row_groups`, and the total as the last element.
    starts: Vec<u64>,
    key: Key,
}

impl EpochOrder {
    /// Creates the order of `epoch` for row groups with the given numbers of rows. Windows consist of whole row
    /// groups.
    pub fn new(sizes: &[u64], seed: u64, epoch: u64) -> Self {
        let key = Key::new(seed).with_bytes(b"order").with(epoch);
        let groups = Permutation::new(sizes.len() as u64, key);
        let row_groups: Vec<usize> = (0..sizes.len() as u64).map(|index| groups.at(index) as usize).collect();
        let mut starts = vec![0];
        for group in &row_groups {
            starts.push(starts[starts.len() - 1] + sizes[*group]);
        }
        Self { epoch, row_groups, starts, key }
    }

    /// Epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Location of sample `index` of the epoch. `index` must be below the number of rows.
    pub fn at(&self, index: u64) -> SampleLocation {
        let group = self.group_of(index);
        let window = group / WINDOW;
        let first = self.starts[window * WINDOW];
        let end = self.starts[((window + 1) * WINDOW).min(self.row_groups.len())];
        let rows = Permutation::new(end - first, self.key.with(window as u64));
        let shuffled = first + rows.at(index - first);
        let group = self.group_of(shuffled);
        SampleLocation { row_group: self.row_groups[group], row: (shuffled - self.starts[group]) as usize }
    }

    /// Row groups of the window that contains sample `index`.
    pub fn window(&self, index: u64) -> &[usize] {
        let window = self.window_of(index);
        &self.row_groups[window * WINDOW..((window + 1) * WINDOW).min(self.row_groups.len())]
    }

    /// Number of the window that contains sample `index`.
    pub fn window_of(&self, index: u64) -> usize {
        self.group_of(index) / WINDOW
    }

    /// Row groups at `positions` of the permuted order.
    pub fn row_groups(&self, positions: Range<usize>) -> &[usize] {
        &self.row_groups[positions]
    }

    fn group_of(&self, index: u64) -> usize {
        self.starts.partition_point(|start| *start <= index) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn epoch_contains_every_sample_once() {
        let sizes: Vec<u64> = (0..53).map(|group| 1 + group * 7 % 31).collect();
        let rows: u64 = sizes.iter().sum();
        for epoch in 0..3 {
            let order = EpochOrder::new(&sizes, 9, epoch);
            let locations: HashSet<SampleLocation> = (0..rows).map(|index| order.at(index)).collect();
            assert_eq!(locations.len() as u64, rows);
            assert!(locations.iter().all(|location| (location.row as u64) < sizes[location.row_group]));
        }
    }

    #[test]
    fn order_depends_on_seed_and_epoch_only() {
        let order = |seed, epoch| -> Vec<SampleLocation> {
            let order = EpochOrder::new(&[10; 40], seed, epoch);
            (0..400).map(|index| order.at(index)).collect()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn window_touches_only_its_row_groups() {
        let order = EpochOrder::new(&[10; 64], 1, 0);
        for window in 0..4 {
            let range = window * 160..(window + 1) * 160;
            let touched: HashSet<usize> = range.map(|index| order.at(index).row_group).collect();
            assert_eq!(touched.len(), WINDOW);
            assert_eq!(touched, order.window(window * 160 + 7).iter().copied().collect());
        }
    }
}
