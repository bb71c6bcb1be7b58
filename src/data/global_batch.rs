//! A global batch, and the part of it that a rank computes.

use std::ops::Range;

use super::batch::MicroBatch;

/// What a rank needs to know of one global batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GlobalBatch {
    /// Epoch of its first sample.
    pub epoch: u64,
    /// Numbers of its samples, counted over all epochs; those that were passed over are among them.
    pub drawn: Range<u64>,
    /// Length of every sample in tokens, those of other ranks included.
    pub lengths: Vec<u16>,
    /// Tokens of padding in the micro-batches of all ranks.
    pub padding: u64,
    /// Tokens of the part with the most over the mean, padding included; 0 if the samples could not be read.
    pub balance: f64,
    /// Tokens to be hidden in all: what the mean of the masked-language loss is taken over. It follows from the lengths
    /// alone, so that every rank knows it before its first backward pass; where no word is short enough for what is left
    /// of a sample's share, a few less are hidden.
    pub masked_tokens: u64,
    /// The micro-batches of this rank; perhaps none.
    pub micro_batches: Vec<MicroBatch>,
    /// How many of them each of the rank's parts has; of a batch in halves, first those of one half, then of the other.
    pub leaves: Vec<usize>,
}

impl GlobalBatch {
    /// All that is this rank's.
    pub fn whole(&self) -> Share<'_> {
        Share { batch: self, micro_batches: &self.micro_batches, leaves: &self.leaves }
    }

    /// What is this rank's of each half, of one that was divided into halves; of one without samples two shares of nothing.
    pub fn halves(&self) -> [Share<'_>; 2] {
        let (first, second) = self.leaves.split_at(self.leaves.len() / 2);
        let (before, behind) = self.micro_batches.split_at(first.iter().sum());
        [(before, first), (behind, second)].map(|(micro_batches, leaves)| Share { batch: self, micro_batches, leaves })
    }

    /// Tokens without padding.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|length| u64::from(*length)).sum()
    }

    /// Samples that were passed over.
    pub fn passed(&self) -> u64 {
        self.drawn.end - self.drawn.start - self.lengths.len() as u64
    }
}

/// This rank's micro-batches of a global batch, or of a half of it.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// All that is known of the global batch.
    pub batch: &'a GlobalBatch,
    /// The micro-batches.
    pub micro_batches: &'a [MicroBatch],
    /// How many of them each of the rank's parts has.
    pub leaves: &'a [usize],
}

impl<'a> Share<'a> {
    /// The micro-batches of each of the rank's parts.
    pub fn leaves(self) -> impl Iterator<Item = &'a [MicroBatch]> {
        let mut rest = self.micro_batches;
        self.leaves.iter().map(move |count| {
            let (leaf, after) = rest.split_at(*count);
            rest = after;
            leaf
        })
    }
}
