//! The row groups that global batches need. A batch has each of its own decoded once, by as many threads as it takes, and takes
//! its samples out of it; what the next batch may need, too, is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lambert_dataset::parallel::parallel;
use lambert_dataset::{Dataset, DatasetError, Samples};

use super::order::Place;

/// What is known of a row group.
#[derive(Default)]
struct Known {
    /// Tokens of each row.
    lengths: Vec<u16>,
    /// All of it, once it was decoded.
    samples: Option<Arc<Samples>>,
}

/// A dataset's row groups, as far as they are known.
pub struct Groups {
    dataset: Arc<Dataset>,
    known: BTreeMap<usize, Known>,
    /// Row groups decoded so far.
    pub decoded: u64,
}

impl Groups {
    /// None yet.
    pub fn new(dataset: Arc<Dataset>) -> Self {
        Self { dataset, known: BTreeMap::new(), decoded: 0 }
    }

    /// Reads the lengths of the rows of `groups`, on `threads` threads.
    pub fn measure(&mut self, groups: &BTreeSet<usize>, threads: usize) -> Result<(), DatasetError> {
        let new: Vec<usize> = groups.iter().copied().filter(|group| !self.known.contains_key(group)).collect();
        let dataset = &self.dataset;
        let lengths = parallel(threads, new.len(), |index| dataset.lengths(new[index]))?;
        let known = lengths.into_iter().map(|lengths| Known { lengths, samples: None });
        self.known.extend(new.into_iter().zip(known));
        Ok(())
    }

    /// Tokens of the sample at `place`, whose row group was measured.
    pub fn length(&self, place: Place) -> u16 {
        self.known[&place.row_group].lengths[place.row]
    }

    /// What `make` makes of the samples at `places`, in their order, on `threads` threads. Each row group is decoded once, and
    /// dropped behind its last sample unless it is one of `kept`.
    pub fn gather<T: Send>(
        &mut self,
        places: &[Place],
        kept: &BTreeSet<usize>,
        threads: usize,
        make: impl Fn(&Samples, usize) -> T + Sync,
    ) -> Result<Vec<T>, DatasetError> {
        let mut rows = BTreeMap::<usize, Vec<usize>>::new();
        for (index, place) in places.iter().enumerate() {
            rows.entry(place.row_group).or_default().push(index);
        }
        let wanted: Vec<(usize, Vec<usize>)> = rows.into_iter().collect();
        let (dataset, known) = (&self.dataset, &self.known);
        let held = |group: usize| known.get(&group).and_then(|known| known.samples.clone());
        let missing = wanted.iter().filter(|(group, _)| held(*group).is_none()).count();
        let made = parallel(threads.min(missing), wanted.len(), |index| {
            let (group, indices) = &wanted[index];
            let samples = match held(*group) {
                Some(samples) => samples,
                None => Arc::new(dataset.read(*group)?),
            };
            let made: Vec<T> = indices.iter().map(|index| make(&samples, *index)).collect();
            Ok((kept.contains(group).then_some(samples), made))
        })?;
        self.decoded += missing as u64;
        let mut slots: Vec<Option<T>> = places.iter().map(|_| None).collect();
        for ((group, indices), (samples, made)) in wanted.into_iter().zip(made) {
            indices.into_iter().zip(made).for_each(|(index, made)| slots[index] = Some(made));
            if let Some(known) = self.known.get_mut(&group) {
                known.samples = samples;
            }
        }
        Ok(slots.into_iter().flatten().collect())
    }

    /// Forgets all but `kept`.
    pub fn keep(&mut self, kept: &BTreeSet<usize>) {
        self.known.retain(|group, _| kept.contains(group));
    }
}
