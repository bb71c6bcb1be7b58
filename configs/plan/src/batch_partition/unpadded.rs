//! Micro-batches without padding between samples.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Layout, MicroBatchPlan, with_most_tokens_last};

/// Splits the `samples` of a rank, sorted from longest to shortest, into micro-batches of at most `budget` tokens. There are
/// nearly as few as possible, and all have about the same number of tokens. A sample that is not shorter than `budget` gets
/// its own micro-batch.
pub fn split_into_micro_batches(lengths: &[u16], samples: Vec<usize>, budget: usize) -> Vec<MicroBatchPlan> {
    let unit = unit(budget);
    let tokens = |samples: &[usize]| samples.iter().map(|index| length(lengths, *index)).sum::<usize>();
    let rounded = |samples: &[usize]| tokens(samples).next_multiple_of(unit);
    let long = samples.iter().take_while(|index| length(lengths, **index) >= budget).count();
    let (long, rest) = samples.split_at(long);
    let (mut count, mut tries) = (tokens(rest).div_ceil(budget.max(1)), 0_usize);
    let groups = loop {
        let groups = balanced_groups(lengths, rest, count);
        match groups.iter().any(|group| group.len() > 1 && rounded(group) > budget) {
            // Few samples fit together if the budget is about the length of one. Then many more groups are necessary.
            true => count = (count + 1 + tries / FINE_TRIES * count / COARSE_PART).min(rest.len()),
            false => break groups,
        }
        tries += 1;
    };
    let groups = long.iter().map(|index| vec![*index]).chain(groups);
    let micro_batch = |samples: Vec<usize>| MicroBatchPlan {
        width: samples.iter().map(|index| length(lengths, *index)).max().unwrap_or(1),
        tokens: rounded(&samples),
        samples,
        layout: Layout::Unpadded,
    };
    with_most_tokens_last(groups.map(micro_batch).collect())
}

/// Number of attempts with one more micro-batch each, before larger increments.
const FINE_TRIES: usize = 16;
/// Larger increments are the number of micro-batches divided by this.
const COARSE_PART: usize = 16;

/// Unit to which the tokens of a micro-batch are rounded up. A GPU selects its kernels again for every shape, so the
/// shapes must recur.
fn unit(budget: usize) -> usize {
    (budget / 256).max(1)
}

fn length(lengths: &[u16], index: usize) -> usize {
    usize::from(lengths[index]).max(1)
}

/// Assigns each sample, from the longest to the shortest, to the group with the fewest tokens.
fn balanced_groups(lengths: &[u16], samples: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new(); count];
    let mut loads: BinaryHeap<_> = (0..count).map(|group| Reverse((0, group))).collect();
    for index in samples {
        let Some(Reverse((load, group))) = loads.pop() else { break };
        groups[group].push(*index);
        loads.push(Reverse((load + length(lengths, *index), group)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_partition::BatchPartition;

    fn split(lengths: &[u16], budget: usize) -> Vec<MicroBatchPlan> {
        BatchPartition::new(lengths, 1, budget, Layout::Unpadded).ranks.remove(0)
    }

    #[test]
    fn micro_batches_have_every_sample_once_and_nearly_no_padding() {
        let mut state = 7_u64;
        let mut length = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1 + ((state >> 33) % most) as u16
        };
        for (count, most, budget) in [(1000, 128, 8192), (300, 512, 4096), (64, 512, 65_536), (7, 100, 250)] {
            let lengths: Vec<u16> = (0..count).map(|_| length(most)).collect();
            let plans = split(&lengths, budget);
            let mut seen: Vec<usize> = plans.iter().flat_map(|plan| plan.samples.clone()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
            let total: usize = lengths.iter().map(|length| usize::from(*length)).sum();
            let padded: usize = plans.iter().map(|plan| plan.tokens).sum();
            assert!(padded - total < plans.len() * unit(budget), "{padded} for {total}");
            assert!(plans.iter().all(|plan| plan.tokens <= budget), "{plans:?}");
            assert!(plans.len() <= total.div_ceil(budget) + 1, "{} micro-batches", plans.len());
            assert_eq!(plans.iter().map(|plan| plan.tokens).max(), plans.last().map(|plan| plan.tokens));
        }
    }

    /// No two samples fit together.
    #[test]
    fn a_budget_of_about_one_sample_gives_a_micro_batch_per_sample() {
        let plans = split(&[128; 3000], 200);
        assert!(plans.iter().all(|plan| plan.samples.len() == 1));
        assert_eq!(plans.len(), 3000);
    }

    #[test]
    fn a_sample_over_the_budget_is_a_micro_batch_of_one() {
        let plans = split(&[10, 500, 10], 100);
        let samples: Vec<&[usize]> = plans.iter().map(|plan| &*plan.samples).collect();
        assert_eq!(samples, [&[0, 2][..], &[1]]);
        assert_eq!(plans[1].width, 500);
        assert_eq!(split(&[], 100), []);
    }
}
