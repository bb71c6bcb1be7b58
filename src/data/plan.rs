//! How a global batch is cut into micro-batches and dealt to ranks: a pure function of the lengths of its samples, the
//! same on every rank and for every world size.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

/// One micro-batch: which samples of the global batch are in it, by their index there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Indices into the global batch.
    pub samples: Vec<usize>,
    /// Longest of them, in tokens: every row is padded to it.
    pub width: usize,
}

impl Cut {
    /// Tokens that are computed with, padding included: rows x width.
    pub fn tokens(&self) -> usize {
        self.samples.len() * self.width
    }
}

/// Padding stays below this share of a global batch's tokens.
const PADDING: f64 = 0.03;

/// Cuts a global batch, longest samples first, so that a micro-batch holds samples of like lengths. `budget` is the
/// tokens of a micro-batch at most (rows x width); a sample longer than that makes one of its own. Where padding is
/// more than 3 % of the tokens then, micro-batches are split, each time where that saves most.
pub fn cut(lengths: &[u16], budget: usize) -> Vec<Cut> {
    let mut samples: Vec<usize> = (0..lengths.len()).collect();
    samples.sort_by_key(|index| (Reverse(lengths[*index]), *index));
    let sorted: Vec<usize> = samples.iter().map(|index| usize::from(lengths[*index]).max(1)).collect();
    let tokens: usize = sorted.iter().sum();
    let (mut splits, mut start, mut room) = (BinaryHeap::new(), 0, 0);
    while start < sorted.len() {
        let rows = (budget / sorted[start]).clamp(1, sorted.len() - start);
        room += rows * sorted[start];
        splits.push(Split::best(&sorted, start..start + rows));
        start += rows;
    }
    while (room - tokens) as f64 >= PADDING * tokens as f64
        && let Some(split) = splits.pop()
    {
        room -= split.saved;
        splits.push(Split::best(&sorted, split.rows.start..split.at));
        splits.push(Split::best(&sorted, split.at..split.rows.end));
    }
    let mut rows: Vec<_> = splits.into_iter().map(|split| split.rows).collect();
    rows.sort_by_key(|rows| rows.start);
    rows.into_iter().map(|rows| Cut { width: sorted[rows.start], samples: samples[rows].to_vec() }).collect()
}

/// A micro-batch, as rows of the sorted samples, and where it is best split.
#[derive(PartialEq, Eq)]
struct Split {
    /// Padding that this saves, tokens; 0 if nothing does.
    saved: usize,
    /// Its second half's first row.
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

/// The rank that works on each micro-batch: one after the other, the largest first, goes to the rank that has the fewest
/// tokens.
pub fn deal(cuts: &[Cut], world: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..cuts.len()).collect();
    by_size.sort_by_key(|index| (Reverse(cuts[*index].tokens()), *index));
    let mut loads: BinaryHeap<_> = (0..world).map(|rank| Reverse((0, rank))).collect();
    let mut ranks = vec![0; cuts.len()];
    for index in by_size {
        let Some(Reverse((load, rank))) = loads.pop() else { break };
        ranks[index] = rank;
        loads.push(Reverse((load + cuts[index].tokens(), rank)));
    }
    ranks
}

#[cfg(test)]
mod tests {
    use lambert_data_prep::random::Key;

    use super::*;

    #[test]
    fn every_sample_is_in_one_micro_batch_within_the_budget() {
        let lengths: Vec<u16> = (0..300).map(|index| 5 + (index * 37 % 124)).collect();
        let cuts = cut(&lengths, 1024);
        let mut seen: Vec<usize> = cuts.iter().flat_map(|cut| cut.samples.clone()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..300).collect::<Vec<_>>());
        for cut in &cuts {
            assert!(cut.samples.len() * cut.width <= 1024);
            assert_eq!(cut.samples.iter().map(|index| usize::from(lengths[*index])).max(), Some(cut.width));
        }
    }

    #[test]
    fn padding_is_little_whatever_the_lengths() {
        let mut rng = Key::new(1).rng();
        for longest in [8, 64, 128, 512] {
            for rows in [1, 7, 32, 256, 4096] {
                // All lengths alike, most of them the longest, few of them.
                for skew in [1, 4, 10] {
                    let mut length = || (0..skew).map(|_| 1 + rng.below(longest)).max().unwrap_or(1) as u16;
                    let lengths: Vec<u16> = (0..rows).map(|_| length()).collect();
                    let cuts = cut(&lengths, 2048);
                    let room: usize = cuts.iter().map(Cut::tokens).sum();
                    let tokens: usize = lengths.iter().map(|length| usize::from(*length)).sum();
                    assert!((room as f64) < 1.03 * tokens as f64, "{room} for {tokens} tokens");
                }
            }
        }
        // No more micro-batches than that takes.
        assert_eq!(cut(&[100; 64], 1000).len(), 7);
        assert_eq!(cut(&[100, 99, 98, 97, 96, 95], 1000).len(), 1);
        let split = cut(&[50, 99, 98, 100, 49, 48], 1000);
        assert_eq!([&split[0].samples, &split[1].samples], [&[3, 1, 2], &[0, 4, 5]]);
    }

    #[test]
    fn ranks_have_the_same_to_do() {
        let lengths: Vec<u16> = (0..1000).map(|index| 5 + (index * 37 % 124)).collect();
        let cuts = cut(&lengths, 1024);
        for world in [1, 2, 3, 8] {
            let mut loads = vec![0; world];
            deal(&cuts, world).iter().zip(&cuts).for_each(|(rank, cut)| loads[*rank] += cut.tokens());
            let apart = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            assert!(apart <= 1024, "{loads:?}");
        }
        assert_eq!(deal(&cuts[..2], 5), [0, 1]);
    }

    #[test]
    fn a_sample_over_the_budget_stands_alone() {
        let cuts = cut(&[10, 500, 10], 100);
        assert_eq!(cuts[0], Cut { samples: vec![1], width: 500 });
        assert_eq!(cuts[1], Cut { samples: vec![0, 2], width: 10 });
        assert_eq!(cut(&[], 100), []);
    }
}
