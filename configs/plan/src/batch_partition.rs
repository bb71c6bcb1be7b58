//! Partition of a global batch. Its samples are assigned to ranks, and the samples of a rank to micro-batches. The
//! partition is a pure function of the sample lengths, so every rank computes the whole partition.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

mod unpadded;

/// Arrangement of the samples of a micro-batch in its tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// Matrix with one sample per row. Every row has the length of the longest sample.
    #[default]
    Padded,
    /// One row with the samples one after the other. A short tail of padding rounds the length.
    Unpadded,
}

/// Samples of one micro-batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatchPlan {
    /// Indices into the global batch.
    pub samples: Vec<usize>,
    /// Length of the longest sample, in tokens.
    pub width: usize,
    /// Number of tokens, padding included.
    pub tokens: usize,
    /// Arrangement of the samples.
    pub layout: Layout,
}

/// Partition of a global batch over ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPartition {
    /// Micro-batches of each rank. Empty for a rank without samples.
    pub ranks: Vec<Vec<MicroBatchPlan>>,
}

impl BatchPartition {
    /// Partitions samples of these lengths over `world` ranks, in micro-batches of at most `budget` tokens, padding
    /// included.
    pub fn new(lengths: &[u16], world: usize, budget: usize, layout: Layout) -> Self {
        let split = match layout {
            Layout::Padded => split_into_micro_batches,
            Layout::Unpadded => unpadded::split_into_micro_batches,
        };
        let ranks = assign_to_ranks(lengths, world).into_iter();
        Self { ranks: ranks.map(|samples| split(lengths, samples, budget)).collect() }
    }

    /// Partitions only `samples`, which are indices into `lengths`.
    pub fn for_subset(lengths: &[u16], samples: &[usize], world: usize, budget: usize, layout: Layout) -> Self {
        let subset: Vec<u16> = samples.iter().map(|sample| lengths[*sample]).collect();
        let mut partition = Self::new(&subset, world, budget, layout);
        let micro_batches = partition.ranks.iter_mut().flatten();
        micro_batches.flat_map(|micro_batch| &mut micro_batch.samples).for_each(|index| *index = samples[*index]);
        partition
    }

    /// Returns the number of tokens on all ranks, padding included.
    pub fn tokens(&self) -> usize {
        self.tokens_by_rank().sum()
    }

    /// Returns the load imbalance: the tokens of the busiest rank divided by the mean over all ranks, padding included.
    /// 1 is optimal.
    pub fn imbalance(&self) -> f64 {
        let most = self.tokens_by_rank().max().unwrap_or(0);
        (most * self.ranks.len()) as f64 / self.tokens().max(1) as f64
    }

    fn tokens_by_rank(&self) -> impl Iterator<Item = usize> {
        self.ranks.iter().map(|micro_batches| micro_batches.iter().map(|plan| plan.tokens).sum())
    }
}

/// Assigns samples to ranks. From the longest to the shortest, each sample goes to the rank with the fewest tokens
/// (longest processing time first, Graham 1969). Then the loads are rebalanced. Returns the samples of each rank,
/// longest first.
fn assign_to_ranks(lengths: &[u16], world: usize) -> Vec<Vec<usize>> {
    let mut samples: Vec<usize> = (0..lengths.len()).collect();
    let longest_first = |index: &usize| (Reverse(lengths[*index]), *index);
    samples.sort_by_key(longest_first);
    let mut loads: BinaryHeap<_> = (0..world).map(|rank| Reverse((0, rank))).collect();
    let mut ranks: Vec<RankLoad> = (0..world).map(|_| RankLoad::default()).collect();
    for index in samples {
        let Some(Reverse((load, rank))) = loads.pop() else { break };
        ranks[rank].add(index, lengths);
        loads.push(Reverse((load + tokens(lengths, index), rank)));
    }
    rebalance(&mut ranks, lengths);
    let mut ranks: Vec<Vec<usize>> = ranks.into_iter().map(|rank| rank.samples).collect();
    ranks.iter_mut().for_each(|samples| samples.sort_by_key(longest_first));
    ranks
}

/// Returns the length of a sample, at least 1. With length 0, a sample would have no cost and could go to any rank.
fn tokens(lengths: &[u16], index: usize) -> usize {
    usize::from(lengths[index]).max(1)
}

/// Samples of one rank.
#[derive(Default)]
struct RankLoad {
    samples: Vec<usize>,
    tokens: usize,
}

impl RankLoad {
    fn add(&mut self, index: usize, lengths: &[u16]) {
        self.samples.push(index);
        self.tokens += tokens(lengths, index);
    }

    fn take(&mut self, place: usize, lengths: &[u16]) -> usize {
        let index = self.samples.swap_remove(place);
        self.tokens -= tokens(lengths, index);
        index
    }
}

/// Load of the busiest rank, relative to the mean, above which loads are rebalanced.
const MAX_IMBALANCE: f64 = 1.005;
/// Maximum number of ranks to consider for an exchange with the busiest rank. The least loaded ranks come first.
const EXCHANGE_CANDIDATES: usize = 16;

/// Repeatedly moves load from the busiest rank to another rank. The busiest rank gives a sample to the other rank,
/// possibly in exchange for a shorter sample. Afterwards, the loads of both ranks are below the previous load of the
/// busiest rank. With few samples per rank, this reduces the imbalance from 10 % to 1 %.
fn rebalance(ranks: &mut [RankLoad], lengths: &[u16]) {
    let all: usize = ranks.iter().map(|rank| rank.tokens).sum();
    for _ in 0..4 * ranks.len() {
        let mut by_load: Vec<usize> = (0..ranks.len()).collect();
        by_load.sort_by_key(|rank| (ranks[*rank].tokens, *rank));
        let Some(most) = by_load.pop() else { return };
        if (ranks[most].tokens * ranks.len()) as f64 <= MAX_IMBALANCE * all as f64 {
            return;
        }
        let relief = |other: &usize| Some((*other, find_exchange(&ranks[most], &ranks[*other], lengths)?));
        let Some((other, (given, taken))) = by_load.iter().take(EXCHANGE_CANDIDATES).find_map(relief) else { return };
        let given = ranks[most].take(given, lengths);
        let taken = taken.map(|place| ranks[other].take(place, lengths));
        ranks[other].add(given, lengths);
        if let Some(index) = taken {
            ranks[most].add(index, lengths);
        }
    }
}

/// Finds the exchange that makes the loads of `most` and `other` most equal. Returns the position of the sample to give
/// and the position of the sample to take, if any. Returns `None` if no exchange brings both loads below the load of
/// `most`.
fn find_exchange(most: &RankLoad, other: &RankLoad, lengths: &[u16]) -> Option<(usize, Option<usize>)> {
    let difference = most.tokens.checked_sub(other.tokens)?;
    let back = || std::iter::once(None).chain((0..other.samples.len()).map(Some));
    let moved = |given: usize, taken: Option<usize>| {
        let taken = taken.map_or(0, |place| tokens(lengths, other.samples[place]));
        tokens(lengths, most.samples[given]).checked_sub(taken).filter(|moved| (1..difference).contains(moved))
    };
    let all = (0..most.samples.len()).flat_map(|given| back().map(move |taken| (given, taken)));
    let better = all.filter_map(|(given, taken)| Some((difference.abs_diff(2 * moved(given, taken)?), given, taken)));
    better.min().map(|(_, given, taken)| (given, taken))
}

/// Maximum padding, relative to the tokens of a rank.
const MAX_PADDING: f64 = 0.03;

/// Splits the `samples` of a rank, sorted from longest to shortest, into micro-batches of samples with similar lengths.
/// A sample longer than `budget` gets its own micro-batch. While padding is 3 % of the tokens or more, splits the
/// micro-batch whose split saves the most padding. The micro-batch with the most tokens comes last, because gradients
/// are sent during the backward pass of the last micro-batch.
fn split_into_micro_batches(lengths: &[u16], samples: Vec<usize>, budget: usize) -> Vec<MicroBatchPlan> {
    let sorted: Vec<usize> = samples.iter().map(|index| usize::from(lengths[*index]).max(1)).collect();
    let tokens: usize = sorted.iter().sum();
    let (mut splits, mut start, mut room) = (BinaryHeap::new(), 0, 0);
    while start < sorted.len() {
        let rows = (budget / sorted[start]).clamp(1, sorted.len() - start);
        room += rows * sorted[start];
        splits.push(Split::best(&sorted, start..start + rows));
        start += rows;
    }
    while (room - tokens) as f64 >= MAX_PADDING * tokens as f64
        && let Some(split) = splits.pop()
    {
        room -= split.saved;
        splits.push(Split::best(&sorted, split.rows.start..split.at));
        splits.push(Split::best(&sorted, split.at..split.rows.end));
    }
    let mut rows: Vec<_> = splits.into_iter().map(|split| split.rows).collect();
    rows.sort_by_key(|rows| rows.start);
    let micro_batch = |rows: Range<usize>| {
        let width = sorted[rows.start];
        MicroBatchPlan { width, tokens: rows.len() * width, samples: samples[rows].to_vec(), layout: Layout::Padded }
    };
    with_most_tokens_last(rows.into_iter().map(micro_batch).collect())
}

/// Moves the micro-batch with the most tokens to the end.
fn with_most_tokens_last(mut micro_batches: Vec<MicroBatchPlan>) -> Vec<MicroBatchPlan> {
    if let Some(most) = (0..micro_batches.len()).max_by_key(|index| micro_batches[*index].tokens) {
        micro_batches[most..].rotate_left(1);
    }
    micro_batches
}

/// Micro-batch as a range of the sorted samples, with the split that saves the most padding.
#[derive(PartialEq, Eq)]
struct Split {
    /// Number of padding tokens that the split saves. 0 if no split saves padding.
    saved: usize,
    /// First row of the second part.
    at: usize,
    rows: Range<usize>,
}

impl Split {
    fn best(sorted: &[usize], rows: Range<usize>) -> Self {
        let saved = |at: usize| (rows.end - at) * (sorted[rows.start] - sorted[at]);
        let at = (rows.start + 1..rows.end).max_by_key(|at| (saved(*at), Reverse(*at))).unwrap_or(rows.end);
        Self { saved: if at < rows.end { saved(at) } else { 0 }, at, rows }
    }
}

impl Ord for Split {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.saved, Reverse(self.rows.start)).cmp(&(other.saved, Reverse(other.rows.start)))
    }
}

impl PartialOrd for Split {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers from 1 to `most` (linear congruential generator, Knuth's MMIX).
    fn pseudo_random_numbers(most: u16) -> impl FnMut() -> u16 {
        let mut state = 1_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1 + ((state >> 33) % u64::from(most)) as u16
        }
    }

    fn sum(lengths: &[u16]) -> usize {
        lengths.iter().map(|length| usize::from(*length)).sum()
    }

    fn split_on_one_rank(lengths: &[u16], budget: usize) -> Vec<MicroBatchPlan> {
        BatchPartition::new(lengths, 1, budget, Layout::Padded).ranks.remove(0)
    }

    #[test]
    fn every_sample_is_in_one_micro_batch_within_the_budget() {
        let lengths: Vec<u16> = (0..300).map(|index| 5 + (index * 37 % 124)).collect();
        for world in [1, 2, 3, 8, 64, 400] {
            let partition = BatchPartition::new(&lengths, world, 1024, Layout::Padded);
            assert_eq!(partition.ranks.len(), world);
            let micro_batches: Vec<MicroBatchPlan> = partition.ranks.concat();
            let mut seen: Vec<usize> =
                micro_batches.iter().flat_map(|micro_batch| micro_batch.samples.clone()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..300).collect::<Vec<_>>());
            for micro_batch in &micro_batches {
                assert!(micro_batch.samples.len() * micro_batch.width <= 1024);
                assert_eq!(
                    micro_batch.samples.iter().map(|index| usize::from(lengths[*index])).max(),
                    Some(micro_batch.width)
                );
            }
        }
    }

    #[test]
    fn padding_stays_below_three_percent() {
        for longest in [8, 64, 128, 512] {
            let mut number = pseudo_random_numbers(longest);
            for (rows, world) in [(1, 1), (7, 1), (32, 1), (256, 1), (4096, 1), (32, 8), (4096, 8), (4096, 64)] {
                // With skew 1, the lengths are uniformly distributed. With skew 10, most samples are long.
                for skew in [1, 4, 10] {
                    let mut length = || (0..skew).map(|_| number()).max().unwrap_or(1);
                    let lengths: Vec<u16> = (0..rows).map(|_| length()).collect();
                    let (room, all) =
                        (BatchPartition::new(&lengths, world, 2048, Layout::Padded).tokens(), sum(&lengths));
                    assert!((room as f64) < 1.03 * all as f64, "{room} for {all} tokens");
                }
            }
        }
        // There are no more micro-batches than necessary.
        assert_eq!(split_on_one_rank(&[100; 64], 1000).len(), 7);
        assert_eq!(split_on_one_rank(&[100, 99, 98, 97, 96, 95], 1000).len(), 1);
        let split = split_on_one_rank(&[50, 99, 98, 100, 49, 48], 1000);
        assert_eq!([&split[0].samples, &split[1].samples], [&[0, 4, 5], &[3, 1, 2]]);
    }

    #[test]
    fn the_micro_batch_with_the_most_tokens_comes_last() {
        let lengths: Vec<u16> = (0..300).map(|index| 5 + (index * 37 % 124)).collect();
        for micro_batches in BatchPartition::new(&lengths, 4, 1024, Layout::Padded).ranks {
            let tokens: Vec<usize> = micro_batches.iter().map(|plan| plan.tokens).collect();
            assert_eq!(tokens.iter().max(), tokens.last(), "{tokens:?}");
            let widths: Vec<usize> =
                micro_batches[..micro_batches.len() - 1].iter().map(|micro_batch| micro_batch.width).collect();
            assert!(widths.is_sorted_by(|a, b| a >= b), "longest first otherwise: {widths:?}");
        }
    }

    /// Lower bound of the tokens of the busiest rank for any assignment. For each k, some rank has at least k + 1 of
    /// the longest (number of ranks x k + 1) samples.
    fn lower_bound(lengths: &[u16], world: usize) -> usize {
        let mut sorted = lengths.to_vec();
        sorted.sort_unstable_by_key(|length| Reverse(*length));
        let rounds = (0..=(lengths.len() - 1) / world).map(|k| sum(&sorted[k * world - k..=k * world]));
        rounds.max().unwrap_or(0)
    }

    #[test]
    fn ranks_are_balanced() {
        let lengths: Vec<u16> = (0..1000).map(|index| 5 + (index * 37 % 124)).collect();
        for (world, most) in [(1, 1.0), (2, 1.01), (3, 1.01), (8, 1.01), (64, 1.02)] {
            let balance = BatchPartition::new(&lengths, world, 1024, Layout::Padded).imbalance();
            assert!((1.0..=most).contains(&balance), "{balance} among {world}");
        }
        // The first stage of configs/bert-base-adam.toml: 256 samples of 128 tokens on 8 ranks, with micro-batches of
        // at most 16,384 tokens.
        assert_eq!(BatchPartition::new(&[128; 256], 8, 16384, Layout::Padded).imbalance(), 1.0);
        let alone = BatchPartition::new(&[70, 40], 5, 1024, Layout::Padded);
        assert_eq!(alone.ranks.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0, 0, 0]);
        assert!((alone.imbalance() - 70.0 / 22.0).abs() < 1e-12);
    }

    /// With at least four samples of any lengths per rank, the imbalance is at most 5 %, or at most the lower bound
    /// plus padding.
    #[test]
    fn imbalance_is_below_five_percent_with_four_samples_per_rank() {
        let mut number = pseudo_random_numbers(128);
        for world in [2, 3, 8, 64] {
            for a_rank in [4, 8, 32] {
                for skew in [1, 4, 10, 40] {
                    let mut length = || (0..skew).map(|_| number()).max().unwrap_or(1);
                    let lengths: Vec<u16> = (0..world * a_rank).map(|_| length()).collect();
                    let partition = BatchPartition::new(&lengths, world, 16384, Layout::Padded);
                    let mean = partition.tokens() as f64 / world as f64;
                    let bound = lower_bound(&lengths, world) as f64 / mean;
                    let balance = partition.imbalance();
                    assert!(balance <= (1.03 * bound).max(1.05), "{balance}, {bound} among {world}: {lengths:?}");
                }
            }
        }
    }

    #[test]
    fn a_sample_over_the_budget_is_a_micro_batch_of_one() {
        let micro_batches = split_on_one_rank(&[10, 500, 10], 100);
        assert_eq!(
            micro_batches[0],
            MicroBatchPlan { samples: vec![0, 2], width: 10, tokens: 20, layout: Layout::Padded }
        );
        assert_eq!(
            micro_batches[1],
            MicroBatchPlan { samples: vec![1], width: 500, tokens: 500, layout: Layout::Padded }
        );
        assert_eq!(split_on_one_rank(&[], 100), []);
    }
}
