//! Weights of tokens for masks by frequency.

/// Weight of a token that occurs once, so that weights of frequent tokens keep enough digits as integers.
const UNIT: f64 = (1_u64 << 40) as f64;

/// Weight of each token of a vocabulary: its number of occurrences to the power of a negative number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenWeights(Vec<u64>);

impl TokenWeights {
    /// Computes `count^-exponent` for each token. A token without occurrences has the weight of a token that occurs once.
    pub fn new(counts: &[u64], exponent: f64) -> Self {
        let weight = |count: &u64| (UNIT * ((*count).max(1) as f64).powf(-exponent)) as u64;
        Self(counts.iter().map(|count| weight(count).max(1)).collect())
    }

    /// Returns the weight of a token.
    pub fn of(&self, id: u32) -> u64 {
        self.0.get(id as usize).copied().unwrap_or(1)
    }
}
