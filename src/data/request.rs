//! What the loader is asked for: a dataset, a rank's place in the world, and one global batch after the other.

use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::{Objective, Test};
use lambert_dataset::Dataset;
use lambert_dataset::random::Key;

use crate::recovery::skipped_samples::SkippedSamples;

/// A dataset and how its samples are drawn and masked.
#[derive(Clone)]
pub struct Source {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// What is masked.
    pub objective: Objective,
    /// Seed of order and masks.
    pub seed: u64,
    /// Whether epochs are shuffled; evaluation reads in the order of the files.
    pub shuffle: bool,
    /// Faults on purpose.
    pub test: Test,
}

/// Which global batches are wanted, and which part of each.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Samples of this dataset that were used before, over all epochs.
    pub cursor: u64,
    /// Samples that are not drawn.
    pub detours: SkippedSamples,
    /// Tokens of a micro-batch at most.
    pub micro_batch_tokens: usize,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub world: usize,
    /// Parts that a global batch is cut into, of which each rank has about as many: those of the world, if nothing else is asked.
    pub parts: usize,
    /// Threads that read at the same time at most.
    pub threads: usize,
    /// Samples of a global batch at most.
    pub largest: usize,
}

impl Demand {
    /// The parts of a global batch that are this rank's.
    pub fn own(&self) -> Range<usize> {
        self.parts * self.rank / self.world..self.parts * (self.rank + 1) / self.world
    }
}

/// A global batch to be made.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Samples.
    pub samples: usize,
    /// If it is to be divided into two halves first, what decides which samples are in which.
    pub halves: Option<Key>,
}

impl Wanted {
    /// One of so many samples, as a whole.
    pub fn whole(samples: usize) -> Self {
        Self { samples, halves: None }
    }
}
