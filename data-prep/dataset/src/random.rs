//! Deterministic pseudo-random numbers with stable values.
//!
//! Every random choice of a preparation job or a training run derives from a [`Key`]. A key is a pure function of the
//! context of the choice (seed, epoch, sample and so on). So no generator state is stored or restored.
//!
//! The generator is implemented here, not in a dependency, because the bytes of every dataset depend on it. No update
//! of a dependency may change a value. Tests pin some values.

/// Key of a random choice: a 64-bit hash of the context of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// 2^64 divided by the golden ratio: the increment of `SplitMix64`.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Finalizer of `SplitMix64` (Steele, Lea and Flood 2014; Stafford's variant 13): a bijection of 64-bit values.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Key {
    /// Creates the key of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)))
    }

    /// Derives a key from this key and a number. The order of derivations matters.
    #[must_use]
    pub const fn with(self, number: u64) -> Self {
        Self(mix(self.0.rotate_left(23) ^ mix(number.wrapping_add(STEP))).wrapping_add(self.0))
    }

    /// Derives a key from this key and bytes, such as a name.
    #[must_use]
    pub fn with_bytes(self, bytes: &[u8]) -> Self {
        // The length distinguishes inputs that differ only in trailing zero bytes. Its bits are inverted so that the
        // key differs from the key of a small number.
        let key = self.with(!(bytes.len() as u64));
        bytes.chunks(8).fold(key, |key, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            key.with(u64::from_le_bytes(word))
        })
    }

    /// Returns the key as a number, uniformly distributed over 64 bits.
    #[must_use]
    pub const fn value(self) -> u64 {
        mix(self.0 ^ STEP)
    }

    /// Returns the raw 64 bits. Code on a device uses them to derive further keys.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Creates a generator seeded with this key.
    #[must_use]
    pub const fn rng(self) -> Rng {
        Rng { state: self.0 }
    }
}

/// Random number generator (`SplitMix64`); see [`Key::rng`].
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Returns the next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Returns a uniform number from 0 to `n - 1`, or 0 if `n` is 0.
    ///
    /// Uses multiplication with rejection (Lemire 2019), so there is no modulo bias.
    pub fn below(&mut self, n: u64) -> u64 {
        let threshold = n.wrapping_neg() % n.max(1);
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Returns a uniform number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a uniform number in [0, 1), in steps of 2^-53.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns `true` with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit_f64() < probability
    }

    /// Shuffles `items` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Pseudo-random permutation of `0..n` that depends on a key. Any index is evaluated in constant time and memory.
///
/// The permutation is a Feistel network over the next power of two, with cycle walking (Black and Rogaway 2002). For
/// `n` of at least 8, an index takes at most two evaluations of the network on average.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    left_bits: u32,
    right_bits: u32,
    rounds: [u64; ROUNDS],
}

const ROUNDS: usize = 8;

impl Permutation {
    /// Creates the permutation of `0..n` for `key`.
    #[must_use]
    pub fn new(n: u64, key: Key) -> Self {
        // A network over fewer than 16 values reaches only some of the permutations.
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(4);
        let mut rng = key.rng();
        let rounds = std::array::from_fn(|_| rng.next_u64());
        Self { n, left_bits: bits / 2, right_bits: bits - bits / 2, rounds }
    }

    /// Returns the image of `index`, which must be below `n`.
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.n, "index {index} of a permutation of {}", self.n);
        let mut value = self.network(index);
        while value >= self.n {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let (left_mask, right_mask) = (mask(self.left_bits), mask(self.right_bits));
        let (mut left, mut right) = ((value >> self.right_bits) & left_mask, value & right_mask);
        for pair in self.rounds.chunks_exact(2) {
            left ^= mix(right ^ pair[0]) & left_mask;
            right ^= mix(left ^ pair[1]) & right_mask;
        }
        left << self.right_bits | right
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Changing these values would change every dataset and every run.
    #[test]
    fn values_never_change() {
        let key = Key::new(1).with(2).with_bytes(b"nine bytes");
        let mut rng = key.rng();
        let drawn = [key.value(), rng.next_u64(), rng.below(1000), rng.between(5, 7)];
        assert_eq!(drawn, PINNED, "{drawn:?}");
        let permutation = Permutation::new(10, Key::new(7));
        let order: Vec<u64> = (0..10).map(|index| permutation.at(index)).collect();
        assert_eq!(order, PINNED_ORDER, "{order:?}");
    }

    const PINNED: [u64; 4] = [4_256_799_070_017_919_035, 8_114_722_773_354_849_145, 898, 6];
    const PINNED_ORDER: [u64; 10] = [4, 6, 8, 3, 0, 7, 1, 5, 2, 9];

    #[test]
    fn keys_depend_on_order_length_and_content() {
        let key = Key::new(3);
        let keys = [
            key,
            key.with(0),
            key.with(0).with(1),
            key.with(1).with(0),
            key.with_bytes(b""),
            key.with_bytes(b"\0"),
            key.with_bytes(b"\0\0"),
            Key::new(4),
        ];
        let distinct: std::collections::HashSet<u64> = keys.iter().map(|key| key.value()).collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn permutations_are_bijections() {
        for n in [1, 2, 3, 7, 16, 17, 100, 1023, 1024, 1025, 5000] {
            let permutation = Permutation::new(n, Key::new(n));
            let mut seen: Vec<u64> = (0..n).map(|index| permutation.at(index)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn permutations_of_four_are_uniform() {
        let mut counts: HashMap<Vec<u64>, u32> = HashMap::new();
        for seed in 0..24_000 {
            let permutation = Permutation::new(4, Key::new(seed));
            *counts.entry((0..4).map(|index| permutation.at(index)).collect()).or_default() += 1;
        }
        assert_eq!(counts.len(), 24);
        // Expected: 1000, standard deviation 31.
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_large_permutation_looks_random() {
        let n = 100_003;
        let permutation = Permutation::new(n, Key::new(5));
        let order: Vec<f64> = (0..n).map(|index| permutation.at(index) as f64 / n as f64).collect();
        let neighbours: f64 = order.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum::<f64>() / n as f64;
        // The mean product of independent values is 0, with standard deviation 1/12/sqrt(n) = 0.00026.
        assert!(neighbours.abs() < 0.0013, "{neighbours}");
    }

    #[test]
    fn below_is_uniform() {
        let mut rng = Key::new(1).rng();
        let mut counts = [0_u32; 7];
        (0..70_000).for_each(|_| counts[rng.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Key::new(9).rng().shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
