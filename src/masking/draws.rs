//! Draws of candidates without replacement, in random order: with equal probabilities, or with probabilities that are
//! proportional to weights.

use lambert_dataset::random::Rng;

/// Draws the candidates 0, 1, ..., one after another.
pub enum Draws {
    /// Each remaining candidate has the same probability.
    Equal(PartialShuffle),
    /// The probability of a remaining candidate is proportional to its weight.
    Weighted(WeightTree),
}

impl Draws {
    /// Draws from `count` candidates. `weight` returns the weight of a candidate, if candidates have weights.
    pub fn new<F: Fn(usize) -> u64>(count: usize, weight: Option<F>) -> Self {
        match weight {
            None => Self::Equal(PartialShuffle::new(count)),
            Some(weight) => Self::Weighted(WeightTree::new((0..count).map(weight))),
        }
    }

    /// Returns the next candidate. `None` if all candidates have been drawn.
    pub fn next(&mut self, rng: &mut Rng) -> Option<usize> {
        match self {
            Self::Equal(shuffle) => shuffle.next(rng),
            Self::Weighted(tree) => tree.next(rng),
        }
    }
}

/// Lazy Fisher-Yates shuffle.
pub struct PartialShuffle {
    candidates: Vec<usize>,
    drawn: usize,
}

impl PartialShuffle {
    fn new(count: usize) -> Self {
        Self { candidates: (0..count).collect(), drawn: 0 }
    }

    fn next(&mut self, rng: &mut Rng) -> Option<usize> {
        let index = self.drawn;
        let left = self.candidates.len().checked_sub(index).filter(|left| *left > 0)?;
        self.drawn += 1;
        self.candidates.swap(index, index + rng.below(left as u64) as usize);
        Some(self.candidates[index])
    }
}

/// Fenwick tree of the weights of the remaining candidates. Weights are integers, so that sums are exact.
pub struct WeightTree {
    /// Node `i`, counted from 1, has the sum of the weights of the last `i & -i` candidates up to candidate `i`.
    sums: Vec<u64>,
    weights: Vec<u64>,
    total: u64,
}

impl WeightTree {
    fn new(weights: impl Iterator<Item = u64>) -> Self {
        let weights: Vec<u64> = weights.collect();
        let mut sums = [&[0], weights.as_slice()].concat();
        for node in 1..sums.len() {
            let parent = node + (node & node.wrapping_neg());
            if parent < sums.len() {
                sums[parent] += sums[node];
            }
        }
        Self { sums, total: weights.iter().sum(), weights }
    }

    fn next(&mut self, rng: &mut Rng) -> Option<usize> {
        if self.total == 0 {
            return None;
        }
        // The candidate is the first one whose sum with all candidates before it is above the draw.
        let (mut left, mut node) = (rng.below(self.total), 0);
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            if let Some(sum) = self.sums.get(node + step).filter(|sum| **sum <= left) {
                left -= sum;
                node += step;
            }
            step /= 2;
        }
        let weight = std::mem::take(&mut self.weights[node]);
        self.total -= weight;
        let mut changed = node + 1;
        while let Some(sum) = self.sums.get_mut(changed) {
            *sum -= weight;
            changed += changed & changed.wrapping_neg();
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use lambert_dataset::random::Key;

    use super::*;

    #[test]
    fn every_candidate_is_drawn_once() {
        for count in [0, 1, 2, 3, 7, 8, 9, 100] {
            let mut rng = Key::new(count as u64).rng();
            for mut draws in [
                Draws::new(count, None::<fn(usize) -> u64>),
                Draws::new(count, Some(|candidate| 1 + 3 * candidate as u64)),
            ] {
                let mut drawn: Vec<usize> = std::iter::from_fn(|| draws.next(&mut rng)).collect();
                drawn.sort_unstable();
                assert!(drawn.into_iter().eq(0..count));
            }
        }
    }

    #[test]
    fn probabilities_are_proportional_to_weights() {
        const WEIGHTS: [u64; 5] = [1, 2, 0, 3, 10];
        const DRAWS: u64 = 1_000_000;
        let mut rng = Key::new(1).rng();
        let (mut first, mut second) = ([0_u64; 5], [0_u64; 5]);
        for _ in 0..DRAWS {
            let mut draws = Draws::new(5, Some(|candidate: usize| WEIGHTS[candidate]));
            let mut next = || draws.next(&mut rng).unwrap();
            first[next()] += 1;
            second[next()] += 1;
        }
        let share = |candidate: usize| WEIGHTS[candidate] as f64 / 16.0;
        for candidate in 0..5 {
            // The second draw follows a first draw of any other candidate.
            let others = (0..5).filter(|other| *other != candidate);
            let after: f64 = others.map(|other| share(other) * share(candidate) / (1.0 - share(other))).sum();
            for (counts, expected) in [(first, share(candidate)), (second, after)] {
                let found = counts[candidate] as f64 / DRAWS as f64;
                // Four standard deviations.
                let limit = 4.0 * (expected * (1.0 - expected) / DRAWS as f64).sqrt();
                assert!((found - expected).abs() <= limit, "{candidate}: {found} of {expected}");
            }
        }
    }
}
