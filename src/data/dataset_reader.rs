//! Samples of one dataset: their order over all epochs, and their row groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use lambert_dataset::{Dataset, DatasetError, ShardPrefetch};

use super::order::{EpochOrder, SampleLocation};
use super::row_group_cache::RowGroupCache;

/// Reads the samples of a dataset. `number` is a dataset number, which counts over all epochs.
pub struct DatasetReader {
    pub dataset: Arc<Dataset>,
    /// True if each epoch is shuffled.
    shuffle: bool,
    seed: u64,
    sizes: Vec<u64>,
    order: Option<EpochOrder>,
    pub groups: RowGroupCache,
}

impl DatasetReader {
    /// Creates a reader. `seed` determines the order of shuffled epochs.
    pub fn new(dataset: Arc<Dataset>, shuffle: bool, seed: u64) -> Self {
        let sizes = dataset.row_groups().iter().map(|group| group.rows).collect();
        let groups = RowGroupCache::new(dataset.clone());
        Self { dataset, shuffle, seed, sizes, order: None, groups }
    }

    /// If the dataset is in an object store, starts to download the shards that contain sample `number` and the samples
    /// after it.
    pub fn fetch_ahead(&mut self, number: u64) -> Result<Option<ShardPrefetch>, DatasetError> {
        let (rows, dataset) = (self.dataset.rows(), self.dataset.clone());
        let (epoch, index) = (number / rows, number % rows);
        let groups: Vec<usize> = match self.shuffle {
            true => self.order(epoch).row_groups_from(index).to_vec(),
            false => (self.in_file_order(index).row_group..self.sizes.len()).collect(),
        };
        let mut seen = BTreeSet::new();
        let shards = groups.iter().map(|group| dataset.row_groups()[*group].shard).filter(|shard| seen.insert(*shard));
        dataset.fetch_ahead(&shards.collect::<Vec<_>>())
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
