//! Detection of replicas that have diverged. All ranks apply the same updates to the same weights, so their weights are
//! identical bit for bit. After a flipped bit in memory or a fault of a processor, the weights can differ without any
//! error. Each save therefore compares the digests of the weights of all ranks before it commits.

use serde::{Deserialize, Serialize};

/// Ranks whose weights differ from the weights of the other ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaMismatch {
    pub ranks: Vec<usize>,
    /// Number of ranks in the majority; `None` without a majority, because the correct weights are then unknown.
    pub agreed: Option<usize>,
}

impl ReplicaMismatch {
    /// Compares the digests of all ranks; `None` if they are equal. Lists the ranks outside the
    /// majority, or all ranks if there is no majority.
    pub fn detect(digests: &[u64]) -> Option<Self> {
        let count = |digest: &u64| digests.iter().filter(|other| *other == digest).count();
        let majority = digests.iter().find(|digest| 2 * count(digest) > digests.len());
        let odd = |rank: &usize| majority != Some(&digests[*rank]);
        let ranks: Vec<usize> = (0..digests.len()).filter(odd).collect();
        (!ranks.is_empty()).then(|| Self { ranks, agreed: majority.map(count) })
    }

    /// True if a majority shows that `rank` is wrong.
    pub fn blames(&self, rank: usize) -> bool {
        self.agreed.is_some() && self.ranks.contains(&rank)
    }
}

impl std::fmt::Display for ReplicaMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = lambert_collective::format_ranks(&self.ranks);
        match self.agreed {
            Some(agreed) => {
                write!(f, "the weights of {names} differ from those of the majority ({agreed} ranks)")
            }
            None => write!(f, "the weights of {names} differ, without a majority"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detect_lists_the_ranks_outside_the_majority() {
        let among =
            |digests: &[u64]| ReplicaMismatch::detect(digests).map(|mismatch| (mismatch.ranks, mismatch.agreed));
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[7]), None);
        assert_eq!(among(&[7, 7, 7]), None);
        assert_eq!(among(&[7, 8, 7]), Some((vec![1], Some(2))));
        assert_eq!(among(&[9, 8, 8, 6, 8]), Some((vec![0, 3], Some(3))));
        assert_eq!(among(&[7, 8]), Some((vec![0, 1], None)));
        assert_eq!(among(&[7, 7, 8, 8]), Some((vec![0, 1, 2, 3], None)));
        let mismatch = ReplicaMismatch::detect(&[7, 8, 7]).unwrap();
        assert_eq!((mismatch.blames(1), mismatch.blames(0)), (true, false));
        assert_eq!(mismatch.to_string(), "the weights of rank 1 differ from those of the majority (2 ranks)");
        assert!(!ReplicaMismatch::detect(&[7, 8]).unwrap().blames(0));
    }
}
