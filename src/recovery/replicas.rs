//! Whether all ranks have the same weights. They do as long as every rank adds the same gradients to the same weights in the
//! same order; a bit that flips in one rank's memory, or a processor that computes wrongly, ends that without another sign.
//! So each save compares a digest of every rank's weights before anything is committed.

use serde::{Deserialize, Serialize};

/// Ranks that do not have the weights of the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// How many ranks have the same weights; `None` if that is no majority, so that nobody knows which are right.
    pub agreed: Option<usize>,
}

impl Apart {
    /// From the digests of all ranks. With a majority those that are not of it are named, without one all.
    pub fn among(digests: &[u64]) -> Option<Self> {
        let count = |digest: &u64| digests.iter().filter(|other| *other == digest).count();
        let majority = digests.iter().find(|digest| 2 * count(digest) > digests.len());
        let odd = |rank: &usize| majority != Some(&digests[*rank]);
        let ranks: Vec<usize> = (0..digests.len()).filter(odd).collect();
        (!ranks.is_empty()).then(|| Self { ranks, agreed: majority.map(count) })
    }

    /// Whether the others know that `rank` is wrong.
    pub fn blames(&self, rank: usize) -> bool {
        self.agreed.is_some() && self.ranks.contains(&rank)
    }
}

impl std::fmt::Display for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.ranks.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        match self.agreed {
            Some(agreed) => {
                write!(f, "the weights of rank(s) {names} differ from those that the other {agreed} have in common")
            }
            None => write!(f, "the weights of ranks {names} differ, and no majority has the same"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_ones_are_named_where_there_is_a_majority() {
        let among = |digests: &[u64]| Apart::among(digests).map(|apart| (apart.ranks, apart.agreed));
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[7]), None);
        assert_eq!(among(&[7, 7, 7]), None);
        assert_eq!(among(&[7, 8, 7]), Some((vec![1], Some(2))));
        assert_eq!(among(&[9, 8, 8, 6, 8]), Some((vec![0, 3], Some(3))));
        assert_eq!(among(&[7, 8]), Some((vec![0, 1], None)));
        assert_eq!(among(&[7, 7, 8, 8]), Some((vec![0, 1, 2, 3], None)));
        let apart = Apart::among(&[7, 8, 7]).unwrap();
        assert_eq!((apart.blames(1), apart.blames(0)), (true, false));
        assert_eq!(apart.to_string(), "the weights of rank(s) 1 differ from those that the other 2 have in common");
        assert!(!Apart::among(&[7, 8]).unwrap().blames(0));
    }
}
