//! How a global batch is cut into micro-batches and dealt to ranks: a pure function of the lengths of its samples, the
//! same on every rank and for every world size.

/// One micro-batch: which samples of the global batch are in it, by their index there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Indices into the global batch.
    pub samples: Vec<usize>,
    /// Longest of them, in tokens: every row is padded to it.
    pub width: usize,
}

/// Cuts a global batch, longest samples first, so that a micro-batch holds samples of like lengths. `budget` is the
/// tokens of a micro-batch at most (rows x width); a sample longer than that makes one of its own.
pub fn cut(lengths: &[u16], budget: usize) -> Vec<Cut> {
    let mut by_length: Vec<usize> = (0..lengths.len()).collect();
    by_length.sort_by_key(|index| (std::cmp::Reverse(lengths[*index]), *index));
    let mut cuts = Vec::new();
    let mut rest = by_length.as_slice();
    while let Some(longest) = rest.first() {
        let width = usize::from(lengths[*longest]).max(1);
        let (samples, left) = rest.split_at((budget / width).clamp(1, rest.len()));
        cuts.push(Cut { samples: samples.to_vec(), width });
        rest = left;
    }
    cuts
}

/// The rank that works on micro-batch `index`. Neighbours, which are of like cost, go to different ranks.
pub fn rank_of(index: usize, world: usize) -> usize {
    index % world
}

#[cfg(test)]
mod tests {
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
    fn a_sample_over_the_budget_stands_alone() {
        let cuts = cut(&[10, 500, 10], 100);
        assert_eq!(cuts[0], Cut { samples: vec![1], width: 500 });
        assert_eq!(cuts[1], Cut { samples: vec![0, 2], width: 10 });
        assert_eq!(cut(&[], 100), []);
    }
}
