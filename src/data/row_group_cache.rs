//! Cache of decoded row groups. The row groups of a batch are decoded in parallel, each once. The row groups that
//! the next batch may need stay in the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lambert_dataset::parallel::parallel;
use lambert_dataset::{Dataset, DatasetError, Samples};

use super::order::SampleLocation;

/// Cached data of a row group.
#[derive(Default)]
struct CachedRowGroup {
    /// Length of each row in tokens.
    lengths: Vec<u16>,
    /// Decoded samples, if they are in the cache.
    samples: Option<Arc<Samples>>,
}

/// Lengths and decoded samples of the row groups of a dataset.
pub struct RowGroupCache {
    dataset: Arc<Dataset>,
    row_groups: BTreeMap<usize, CachedRowGroup>,
    /// Number of row groups decoded so far.
    pub decoded: u64,
}

impl RowGroupCache {
    /// Creates an empty cache.
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, row_groups: BTreeMap::new(), decoded: 0 }
    }

    /// Reads the row lengths of those row groups in `groups` whose lengths are not cached, on `threads` threads.
    pub fn load_lengths(&mut self, groups: &BTreeSet<usize>, threads: usize) -> Result<(), DatasetError> {
        let new: Vec<usize> = groups.iter().copied().filter(|group| !self.row_groups.contains_key(group)).collect();
        let dataset = &self.dataset;
        let lengths = parallel(threads, new.len(), |index| dataset.lengths(new[index]))?;
        let cached = lengths.into_iter().map(|lengths| CachedRowGroup { lengths, samples: None });
        self.row_groups.extend(new.into_iter().zip(cached));
        Ok(())
    }

    /// Length of a sample in tokens. The row group of the sample must have been passed
    /// to [`RowGroupCache::load_lengths`].
    pub fn length(&self, location: SampleLocation) -> u16 {
        self.row_groups[&location.row_group].lengths[location.row]
    }

    /// Applies `map` to the samples at `locations` on `threads` threads and returns the results in order. Decodes
    /// each row group once, and keeps it only if it is in `retained`.
    pub fn gather<T: Send>(
        &mut self,
        locations: &[SampleLocation],
        retained: &BTreeSet<usize>,
        threads: usize,
        map: impl Fn(&Samples, usize) -> T + Sync,
    ) -> Result<Vec<T>, DatasetError> {
        let mut rows = BTreeMap::<usize, Vec<usize>>::new();
        for (index, location) in locations.iter().enumerate() {
            rows.entry(location.row_group).or_default().push(index);
        }
        let batch_rows: Vec<(usize, Vec<usize>)> = rows.into_iter().collect();
        let (dataset, cached) = (&self.dataset, &self.row_groups);
        let cached_samples = |group: usize| cached.get(&group).and_then(|cached| cached.samples.clone());
        let missing = batch_rows.iter().filter(|(group, _)| cached_samples(*group).is_none()).count();
        let results = parallel(threads.min(missing), batch_rows.len(), |index| {
            let (group, indices) = &batch_rows[index];
            let samples = match cached_samples(*group) {
                Some(samples) => samples,
                None => Arc::new(dataset.read(*group)?),
            };
            let results: Vec<T> = indices.iter().map(|index| map(&samples, *index)).collect();
            Ok::<_, DatasetError>((retained.contains(group).then_some(samples), results))
        })?;
        self.decoded += missing as u64;
        let mut ordered: Vec<Option<T>> = locations.iter().map(|_| None).collect();
        for ((group, indices), (samples, results)) in batch_rows.into_iter().zip(results) {
            indices.into_iter().zip(results).for_each(|(index, result)| ordered[index] = Some(result));
            if let Some(cached) = self.row_groups.get_mut(&group) {
                cached.samples = samples;
            }
        }
        Ok(ordered.into_iter().flatten().collect())
    }

    /// Evicts all row groups except `retained`.
    pub fn retain(&mut self, retained: &BTreeSet<usize>) {
        self.row_groups.retain(|group, _| retained.contains(group));
    }
}
