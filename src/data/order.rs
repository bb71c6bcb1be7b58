//! The order of the samples of an epoch: row groups are permuted, then rows within windows of a few row groups, both by
//! keyed permutations. Reading in this order touches a few row groups at a time, and finding the sample at any place
//! costs the same, so that a run is resumed in no time.

use lambert_dataset::random::{Key, Permutation};
pub use lambert_plan::memory::WINDOW;

/// Where a sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Row group, numbered through the whole dataset.
    pub row_group: usize,
    /// Row in it.
    pub row: usize,
}

/// The order of one epoch.
pub struct Order {
    epoch: u64,
    /// Row groups in the order of the epoch.
    row_groups: Vec<usize>,
    /// Rows before each of `row_groups`, and of all at the end.
    starts: Vec<u64>,
    key: Key,
}

impl Order {
    /// The order of `epoch` for row groups of the given sizes. A row group is never split between windows.
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

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where the sample at `index` of the epoch lies; `index` is below the number of rows.
    pub fn at(&self, index: u64) -> Place {
        let group = self.group_of(index);
        let window = group / WINDOW;
        let first = self.starts[window * WINDOW];
        let end = self.starts[((window + 1) * WINDOW).min(self.row_groups.len())];
        let rows = Permutation::new(end - first, self.key.with(window as u64));
        let shuffled = first + rows.at(index - first);
        let group = self.group_of(shuffled);
        Place { row_group: self.row_groups[group], row: (shuffled - self.starts[group]) as usize }
    }

    /// The row groups of the window that the sample at `index` of the epoch is in.
    pub fn window(&self, index: u64) -> &[usize] {
        let window = self.group_of(index) / WINDOW;
        &self.row_groups[window * WINDOW..((window + 1) * WINDOW).min(self.row_groups.len())]
    }

    /// The row groups from the window of the sample at `index` on to the end of the epoch, in their order.
    pub fn row_groups_from(&self, index: u64) -> &[usize] {
        &self.row_groups[self.group_of(index) / WINDOW * WINDOW..]
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
    fn an_epoch_holds_every_sample_once() {
        let sizes: Vec<u64> = (0..53).map(|group| 1 + group * 7 % 31).collect();
        let rows: u64 = sizes.iter().sum();
        for epoch in 0..3 {
            let order = Order::new(&sizes, 9, epoch);
            let places: HashSet<Place> = (0..rows).map(|index| order.at(index)).collect();
            assert_eq!(places.len() as u64, rows);
            assert!(places.iter().all(|place| (place.row as u64) < sizes[place.row_group]));
        }
    }

    #[test]
    fn orders_differ_by_seed_and_epoch_and_repeat() {
        let order = |seed, epoch| -> Vec<Place> {
            let order = Order::new(&[10; 40], seed, epoch);
            (0..400).map(|index| order.at(index)).collect()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn a_window_touches_no_more_row_groups_than_it_has() {
        let order = Order::new(&[10; 64], 1, 0);
        for window in 0..4 {
            let range = window * 160..(window + 1) * 160;
            let touched: HashSet<usize> = range.map(|index| order.at(index).row_group).collect();
            assert_eq!(touched.len(), WINDOW);
            assert_eq!(touched, order.window(window * 160 + 7).iter().copied().collect());
        }
    }
}
