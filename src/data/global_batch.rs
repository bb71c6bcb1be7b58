//! A global batch and the micro-batches that one rank computes.

use std::ops::Range;

use super::batch::MicroBatch;

/// Samples of one dataset in a global batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatasetPart {
    /// Number of samples.
    pub samples: u64,
    /// Epoch of the first sample; `None` if there are no samples.
    pub epoch: Option<u64>,
    /// Number of samples taken from the dataset so far, over all epochs. Includes skipped samples.
    pub cursor_after: u64,
}

/// Global batch, with the micro-batches of one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GlobalBatch {
    /// Samples of each dataset of the mixture.
    pub datasets: Vec<DatasetPart>,
    /// Range of sample numbers of the mixture. Includes skipped samples.
    pub sample_range: Range<u64>,
    /// Length of every sample in tokens, including the samples of other ranks.
    pub lengths: Vec<u16>,
    /// Padding tokens in the micro-batches of all ranks.
    pub padding: u64,
    /// Ratio of the number of tokens in the largest shard to the mean number of tokens in a shard. Padding counts. 0 if
    /// the samples could not be read.
    pub imbalance: f64,
    /// Number of masked tokens of all ranks, which is the divisor of the masked-language loss. The number is computed
    /// from the lengths alone, so that every rank knows it before its first backward pass. With whole-word or span
    /// masking, slightly fewer tokens may actually be masked.
    pub masked_tokens: u64,
    /// Micro-batches of this rank; may be empty.
    pub micro_batches: Vec<MicroBatch>,
    /// Number of micro-batches in each of this rank's shards. In a split batch, the shards of the first half come
    /// first.
    pub shard_micro_batches: Vec<usize>,
}

impl GlobalBatch {
    /// All micro-batches of this rank.
    pub fn whole(&self) -> RankBatch<'_> {
        RankBatch { batch: self, micro_batches: &self.micro_batches, shard_micro_batches: &self.shard_micro_batches }
    }

    /// Micro-batches of this rank in each half of a split batch; empty if the batch has no samples.
    pub fn halves(&self) -> [RankBatch<'_>; 2] {
        let (first, second) = self.shard_micro_batches.split_at(self.shard_micro_batches.len() / 2);
        let (before, behind) = self.micro_batches.split_at(first.iter().sum());
        [(before, first), (behind, second)].map(|(micro_batches, shard_micro_batches)| RankBatch {
            batch: self,
            micro_batches,
            shard_micro_batches,
        })
    }

    /// Number of tokens without padding.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|length| u64::from(*length)).sum()
    }

    /// Epoch of the first sample of each dataset in the batch; the largest of them.
    pub fn epoch(&self) -> u64 {
        self.datasets.iter().filter_map(|part| part.epoch).max().unwrap_or(0)
    }

    /// Number of skipped samples.
    pub fn skipped(&self) -> u64 {
        self.sample_range.end - self.sample_range.start - self.lengths.len() as u64
    }
}

/// Micro-batches of this rank, from a global batch or from half of a global batch.
#[derive(Debug, Clone, Copy)]
pub struct RankBatch<'a> {
    /// Global batch.
    pub batch: &'a GlobalBatch,
    /// Micro-batches of this rank.
    pub micro_batches: &'a [MicroBatch],
    /// Number of micro-batches in each of this rank's shards.
    pub shard_micro_batches: &'a [usize],
}

impl<'a> RankBatch<'a> {
    /// Micro-batches of each shard.
    pub fn shards(self) -> impl Iterator<Item = &'a [MicroBatch]> {
        let mut rest = self.micro_batches;
        self.shard_micro_batches.iter().map(move |count| {
            let (shard, after) = rest.split_at(*count);
            rest = after;
            shard
        })
    }
}
