//! Mixture of datasets: the dataset of each sample of a stage.
//!
//! The samples of a mixture are numbered. Sample number n is a pure function of the seed and n, so it is the same for every
//! number of ranks, and after every resume. The numbers are divided into blocks. A block has a fixed number of samples of
//! each dataset, spread evenly over the block (docs/design/mixtures.md).

use std::sync::Arc;

use lambert_dataset::random::Key;
use lambert_dataset::{Dataset, DatasetError, sha256_hex};
use lambert_plan::memory::DatasetShape;
use lambert_plan::mixture::BLOCK;

/// Datasets of a stage, with their shares. A stage with one dataset is a mixture of one.
#[derive(Clone)]
pub struct Mixture {
    datasets: Vec<Arc<Dataset>>,
    names: Vec<String>,
    counts: Vec<u64>,
    id: String,
}

impl Mixture {
    /// Creates the mixture of one dataset.
    pub fn single(dataset: Arc<Dataset>) -> Self {
        let id = dataset.manifest_sha256().to_owned();
        Self { datasets: vec![dataset], names: vec![String::new()], counts: vec![BLOCK], id }
    }

    /// Fraction of the downloaded bytes that each dataset supplies. 0 for local datasets.
    pub fn download_shares(&self) -> Vec<f64> {
        let bytes = |(dataset, count): (&Arc<Dataset>, &u64)| match dataset.is_remote() {
            true => *count as f64 * dataset.manifest().shard_bytes() as f64 / dataset.rows().max(1) as f64,
            false => 0.0,
        };
        let bytes: Vec<f64> = self.datasets.iter().zip(&self.counts).map(bytes).collect();
        let sum: f64 = bytes.iter().sum();
        bytes.into_iter().map(|bytes| if bytes > 0.0 { bytes / sum } else { 0.0 }).collect()
    }

    /// Creates a mixture of datasets. `names` are their names in the configuration, and `counts` the numbers of samples
    /// of each dataset in a block of [`BLOCK`] samples.
    pub fn new(datasets: Vec<Arc<Dataset>>, names: Vec<String>, counts: Vec<u64>) -> Self {
        let line = |(dataset, count): (&Arc<Dataset>, &u64)| format!("{} {count}\n", dataset.manifest_sha256());
        let id = sha256_hex(datasets.iter().zip(&counts).map(line).collect::<String>().as_bytes());
        Self { datasets, names, counts, id }
    }

    /// Key of the sample numbers in the training state: the SHA-256 of the manifest of a single dataset, or the SHA-256 of
    /// all manifests and counts.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The datasets.
    pub fn datasets(&self) -> &[Arc<Dataset>] {
        &self.datasets
    }

    /// Names of the datasets in the configuration.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// True if there is only one dataset.
    pub fn is_single(&self) -> bool {
        self.datasets.len() == 1 && self.id == self.datasets[0].manifest_sha256()
    }

    /// Shape of the data, for memory estimates. A reader caches row groups of all datasets, so their sizes are added.
    pub fn shape(&self) -> DatasetShape {
        let shapes: Vec<DatasetShape> = self.datasets.iter().map(|dataset| dataset.sizes()).collect();
        let tokens: u64 = shapes.iter().zip(&self.counts).map(|(shape, count)| shape.mean_length as u64 * count).sum();
        let mean_length = (tokens / self.counts.iter().sum::<u64>().max(1)) as usize;
        DatasetShape { mean_length, ..DatasetShape::of_mixture(shapes) }
    }

    /// URLs of the datasets, for messages.
    pub fn url(&self) -> String {
        let urls: Vec<&str> = self.datasets.iter().map(|dataset| dataset.url()).collect();
        if self.is_single() { urls.concat() } else { format!("the mixture of {}", urls.join(", ")) }
    }

    /// Returns the dataset and the shard that `error` reports as damaged, if any.
    pub fn damaged_shard(&self, error: &DatasetError) -> Option<(usize, usize)> {
        self.datasets
            .iter()
            .enumerate()
            .find_map(|(dataset_index, dataset)| Some((dataset_index, dataset.damaged_shard(error)?)))
    }

    /// Order of the samples.
    pub fn order(&self, seed: u64) -> MixtureOrder {
        let key = Key::new(seed).with_bytes(b"mixture");
        MixtureOrder { counts: self.counts.clone(), key, block: None }
    }
}

/// Sample of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixtureSample {
    /// Index of the dataset in the mixture.
    pub dataset: usize,
    /// Number of samples that the mixture took from this dataset before this one.
    pub index: u64,
}

/// Order of the samples of a mixture.
pub struct MixtureOrder {
    counts: Vec<u64>,
    key: Key,
    /// Number of the last block, and its samples. The index counts from the start of the block.
    block: Option<(u64, Vec<MixtureSample>)>,
}

impl MixtureOrder {
    /// Returns sample `number`.
    pub fn at(&mut self, number: u64) -> MixtureSample {
        if self.counts.len() == 1 {
            return MixtureSample { dataset: 0, index: number };
        }
        let block = number / BLOCK;
        let MixtureSample { dataset, index } = self.block(block)[(number % BLOCK) as usize];
        MixtureSample { dataset, index: block * self.counts[dataset] + index }
    }

    /// Returns the numbers of samples of each dataset before sample `number`.
    pub fn taken(&mut self, number: u64) -> Vec<u64> {
        if self.counts.len() == 1 {
            return vec![number];
        }
        let block = number / BLOCK;
        let mut taken: Vec<u64> = self.counts.iter().map(|count| block * count).collect();
        let inside = (number % BLOCK) as usize;
        if inside > 0 {
            self.block(block)[..inside].iter().for_each(|sample| taken[sample.dataset] += 1);
        }
        taken
    }

    /// Samples of a block.
    fn block(&mut self, number: u64) -> &[MixtureSample] {
        let block = self.block.take().filter(|(loaded, _)| *loaded == number);
        let (counts, key) = (&self.counts, self.key.with(number));
        &self.block.insert(block.unwrap_or_else(|| (number, block_order(counts, key)))).1
    }
}

/// Spreads the samples of each dataset evenly over a block, by sorting all samples. Sample j of a dataset with c samples
/// gets a sort key that is uniformly random in the j-th of c equal intervals.
fn block_order(counts: &[u64], key: Key) -> Vec<MixtureSample> {
    let mut keyed = Vec::with_capacity(counts.iter().sum::<u64>() as usize);
    for (dataset, count) in counts.iter().enumerate() {
        let mut draws = key.with(dataset as u64).rng();
        let sort_key = |index: u64| (index as f64 + draws.unit_f64()) / *count as f64;
        let samples = (0..*count).map(|index| MixtureSample { dataset, index });
        keyed.extend((0..*count).map(sort_key).zip(samples));
    }
    keyed.sort_by(|(left, one), (right, other)| left.total_cmp(right).then(one.dataset.cmp(&other.dataset)));
    keyed.into_iter().map(|(_, sample)| sample).collect()
}

#[cfg(test)]
mod tests {
    use lambert_plan::mixture::block_counts;

    use super::*;

    fn order(weights: &[f64], seed: u64) -> MixtureOrder {
        MixtureOrder { counts: block_counts(weights), key: Key::new(seed), block: None }
    }

    #[test]
    fn every_sample_of_each_dataset_is_taken_in_order() {
        let mut order = order(&[0.7, 0.2, 0.1], 3);
        let mut next = [0; 3];
        for number in 0..3 * BLOCK + 1000 {
            if number % 9973 == 0 {
                assert_eq!(order.taken(number), next);
            }
            let MixtureSample { dataset, index } = order.at(number);
            assert_eq!(index, next[dataset], "sample {number}");
            next[dataset] += 1;
        }
        assert_eq!(order.taken(3 * BLOCK), order.counts.iter().map(|count| 3 * count).collect::<Vec<_>>());
    }

    #[test]
    fn shares_hold_in_every_part_of_a_million_samples() {
        let shares = [0.55, 0.3, 0.1, 0.05];
        let mut order = order(&shares, 1);
        for number in (0..1_000_000).step_by(997) {
            for (taken, share) in order.taken(number).iter().zip(shares) {
                let expected = share * number as f64;
                // Each dataset is within one sample of its part of the places before, and so their number within four.
                // The shares are rounded to 1/65,536.
                let most = 1.0 + 4.0 * share + number as f64 * 1e-5;
                assert!((*taken as f64 - expected).abs() <= most, "{number}: {taken} {expected}");
            }
        }
        // With two equal shares, each pair has a sample of each dataset, in random order.
        let mut halves = self::order(&[1.0, 1.0], 1);
        let first = |pair| halves.at(2 * pair).dataset;
        let firsts = (0..BLOCK / 2).map(first).filter(|dataset| *dataset == 0).count();
        assert!(firsts.abs_diff(BLOCK as usize / 4) < 400, "{firsts} pairs start with the first dataset");
    }

    #[test]
    fn samples_depend_on_the_seed_and_their_number_only() {
        let numbers = [0, 1, 65535, 65536, 65537, 999_999, 7];
        let read = |seed, backwards: bool| {
            let mut order = order(&[2.0, 1.0], seed);
            let mut samples = numbers.map(|number| (number, None));
            let visit = |(number, sample): &mut (u64, Option<MixtureSample>)| *sample = Some(order.at(*number));
            match backwards {
                true => samples.iter_mut().rev().for_each(visit),
                false => samples.iter_mut().for_each(visit),
            }
            samples
        };
        assert_eq!(read(1, false), read(1, true));
        let datasets = |seed| (0..64).map(|number| order(&[1.0, 1.0], seed).at(number).dataset).collect::<Vec<_>>();
        assert_ne!(datasets(1), datasets(2));
    }
}
