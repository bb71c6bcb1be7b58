//! Samples of one dataset: their order over all epochs, and their row groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use lambert_dataset::{Dataset, DatasetError, Prefetch};

use super::order::{EpochOrder, SampleLocation, WINDOW};
use super::row_group_cache::RowGroupCache;

/// Reads the samples of a dataset. `number` is a dataset number, which counts over all epochs.
pub struct DatasetReader {
    pub dataset: Arc<Dataset>,
    /// True if each epoch is shuffled.
    shuffle: bool,
    seed: u64,
    sizes: Arc<[u64]>,
    order: Option<EpochOrder>,
    pub groups: RowGroupCache,
    prefetch: Option<RunningPrefetch>,
}

/// Prefetch of a dataset in an object store.
struct RunningPrefetch {
    prefetch: Prefetch,
    /// Window at the start, counted over all epochs.
    start: u64,
}

impl DatasetReader {
    /// Creates a reader. `seed` determines the order of shuffled epochs.
    pub fn new(dataset: Arc<Dataset>, shuffle: bool, seed: u64) -> Self {
        let sizes = dataset.row_groups().iter().map(|group| group.rows).collect();
        let groups = RowGroupCache::new(dataset.clone());
        Self { dataset, shuffle, seed, sizes, order: None, groups, prefetch: None }
    }

    /// Starts to download the row groups from sample `number` on, to sample `end` if it is not `None`. `share` is the fraction
    /// of the cache for this dataset.
    pub fn start_prefetch(&mut self, number: u64, end: Option<u64>, share: f64) -> Result<(), DatasetError> {
        let (start, per_epoch) = (self.window_number(number), self.windows_per_epoch());
        let end = match end {
            Some(end) if end > number => self.window_number(end - 1) + 1,
            Some(_) => start,
            None => u64::MAX,
        };
        let (sizes, shuffle, seed) = (self.sizes.clone(), self.shuffle, self.seed);
        let mut order: Option<EpochOrder> = None;
        let windows = (start..end).map(move |window| {
            let (epoch, groups) = (window / per_epoch, window_groups(window % per_epoch, sizes.len()));
            if !shuffle {
                return groups.collect();
            }
            let current = order.take().filter(|order| order.epoch() == epoch);
            order.insert(current.unwrap_or_else(|| EpochOrder::new(&sizes, seed, epoch))).row_groups(groups).to_vec()
        });
        let prefetch = self.dataset.prefetch_windows(Box::new(windows), per_epoch, share)?;
        self.prefetch = prefetch.map(|prefetch| RunningPrefetch { prefetch, start });
        Ok(())
    }

    /// Reports to the prefetch that the next sample to be read is `number`.
    pub fn report_position(&mut self, number: u64) {
        if self.prefetch.is_none() {
            return;
        }
        let window = self.window_number(number);
        if let Some(RunningPrefetch { prefetch, start }) = &self.prefetch {
            prefetch.passed(window.saturating_sub(*start));
        }
    }

    /// Window of sample `number`, counted over all epochs.
    fn window_number(&mut self, number: u64) -> u64 {
        let rows = self.dataset.rows();
        let (epoch, index) = (number / rows, number % rows);
        let window = match self.shuffle {
            true => self.order(epoch).window_of(index),
            false => self.in_file_order(index).row_group / WINDOW,
        };
        epoch * self.windows_per_epoch() + window as u64
    }

    fn windows_per_epoch(&self) -> u64 {
        self.sizes.len().div_ceil(WINDOW) as u64
    }

    /// Epoch and location of sample `number`.
    pub fn location(&mut self, number: u64) -> (u64, SampleLocation) {
        let rows = self.dataset.rows();
        let (epoch, index) = (number / rows, number % rows);
        if !self.shuffle {
            return (epoch, self.in_file_order(index));
        }
        (epoch, self.order(epoch).at(index))
    }

    /// Row groups in the window of sample `number`, which the next batch is likely to read.
    pub fn window(&mut self, number: u64) -> BTreeSet<usize> {
        let (epoch, location) = self.location(number);
        if !self.shuffle {
            return BTreeSet::from([location.row_group]);
        }
        let rows = self.dataset.rows();
        self.order(epoch).window(number % rows).iter().copied().collect()
    }

    fn order(&mut self, epoch: u64) -> &EpochOrder {
        let order = self.order.take().filter(|order| order.epoch() == epoch);
        self.order.insert(order.unwrap_or_else(|| EpochOrder::new(&self.sizes, self.seed, epoch)))
    }

    fn in_file_order(&self, index: u64) -> SampleLocation {
        let groups = self.dataset.row_groups();
        let row_group = groups.partition_point(|group| group.first_row <= index) - 1;
        SampleLocation { row_group, row: (index - groups[row_group].first_row) as usize }
    }
}

/// Positions of the row groups of a window, in an epoch with `count` row groups.
fn window_groups(window: u64, count: usize) -> std::ops::Range<usize> {
    let first = window as usize * WINDOW;
    first..(first + WINDOW).min(count)
}
