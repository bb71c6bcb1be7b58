//! Parameters of the data loader.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::{FaultInjection, Objective};
use lambert_dataset::random::Key;
use lambert_plan::batch_partition::Layout;

use super::mixture::{Mixture, MixtureSample};
use crate::masking::Phrases;
use crate::recovery::skipped_samples::SkippedSamples;

/// Datasets and sampling parameters.
#[derive(Clone)]
pub struct SampleSource {
    pub mixture: Mixture,
    /// Objective, which determines the masking.
    pub objective: Objective,
    /// Phrases that are masked like one word.
    pub phrases: Option<Arc<Phrases>>,
    /// Seed of sample order and masks.
    pub seed: u64,
    /// True if each epoch is shuffled. An evaluation is not shuffled, so it reads in file order.
    pub shuffle: bool,
    /// Fault injection for tests.
    pub fault_injection: FaultInjection,
}

/// Batch and sharding parameters of a loader.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// First sample.
    pub position: MixturePosition,
    /// Samples to skip.
    pub skipped: SkippedSamples,
    /// Shards to skip, for each dataset of the mixture. Datasets at the end of the list may be absent.
    pub skipped_shards: Vec<BTreeSet<usize>>,
    /// Maximum tokens per micro-batch, padding included.
    pub micro_batch_tokens: usize,
    /// Layout of the micro-batches.
    pub layout: Layout,
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of shards of a global batch, distributed evenly over the ranks. There is one shard per rank or, with
    /// `all_reduce.canonical`, a fixed number of shards for every world size.
    pub batch_shards: usize,
    /// Maximum number of reader threads.
    pub max_threads: usize,
    /// Maximum number of samples per global batch.
    pub max_batch: usize,
}

/// Position in a mixture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MixturePosition {
    /// Mixture number of the next sample.
    pub next: u64,
    /// Number of samples that other mixtures drew from each dataset before. Zeros at the end of the list may be absent.
    pub drawn_by_others: Vec<u64>,
}

impl MixturePosition {
    /// Dataset number of a sample of the mixture.
    pub fn dataset_number(&self, sample: MixtureSample) -> u64 {
        self.drawn_by_others.get(sample.dataset).copied().unwrap_or(0) + sample.index
    }

    /// Dataset number of the next sample of each dataset, after the mixture has taken `taken` samples from them.
    pub fn dataset_numbers(&self, taken: &[u64]) -> Vec<u64> {
        let next = |(dataset, taken): (usize, &u64)| self.dataset_number(MixtureSample { dataset, index: *taken });
        taken.iter().enumerate().map(next).collect()
    }
}

impl LoaderOptions {
    /// True if a shard of a dataset is skipped.
    pub fn skips_shard(&self, dataset: usize, shard: usize) -> bool {
        self.skipped_shards.get(dataset).is_some_and(|shards| shards.contains(&shard))
    }

    /// Indices of the shards that this rank computes.
    pub fn own_shards(&self) -> Range<usize> {
        self.batch_shards * self.rank / self.world_size..self.batch_shards * (self.rank + 1) / self.world_size
    }
}

/// Request for one global batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest {
    /// Number of samples.
    pub samples: usize,
    /// Key of the split into two halves; `None`: the batch is not split.
    pub split_key: Option<Key>,
}

impl BatchRequest {
    /// Requests a batch of `samples` samples, not split.
    pub fn whole(samples: usize) -> Self {
        Self { samples, split_key: None }
    }
}
