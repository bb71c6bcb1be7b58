//! What a run file says about each document besides its tokens: enough to find duplicates without reading them.

use super::totals::Totals;
use crate::record::DocumentId;
use lambert_dataset::random::Key;

/// Values of a MinHash signature.
pub const SIGNATURE: usize = 64;
/// Pieces of a run that the similarity of two documents counts.
const RUN: usize = 5;
/// Bytes of a head without a signature.
const HEAD: usize = 32;
/// The cell of a document that is only there to be excluded.
pub const EXCLUDED: u16 = u16::MAX;

/// What is known of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its place in the corpus.
    pub id: DocumentId,
    /// Its cell, or [`EXCLUDED`].
    pub cell: u16,
    /// Its sentences and tokens.
    pub totals: Totals,
    /// Of all its tokens.
    pub hash: u64,
}

impl Head {
    /// Bytes of a head, with or without a signature.
    pub const fn bytes(signed: bool) -> usize {
        if signed { HEAD + 4 * SIGNATURE } else { HEAD }
    }

    /// Appends the head, without signature.
    pub fn write(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(&self.hash.to_le_bytes());
        let words = [self.id.file, self.id.ordinal, self.totals.sentences as u32, self.totals.tokens as u32];
        words.iter().for_each(|word| output.extend_from_slice(&word.to_le_bytes()));
        output.extend_from_slice(&u64::from(self.cell).to_le_bytes());
    }

    /// Reads what [`Head::write`] wrote.
    pub fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            id: DocumentId { file: word(8), ordinal: word(12) },
            cell: word(24) as u16,
            totals: Totals { documents: 1, sentences: u64::from(word(16)), tokens: u64::from(word(20)) },
            hash: u64::from(word(0)) | u64::from(word(4)) << 32,
        }
    }
}

/// A hash of all tokens: two documents of a corpus of 20 million share it by chance with a probability of 1e-5.
pub fn hash(tokens: &[u32]) -> u64 {
    // A rolling multiply is enough before the final mix: nobody is attacking.
    let mut state = tokens.len() as u64;
    for &token in tokens {
        state = (state.rotate_left(29) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    Key::new(state).value()
}

/// The MinHash signature of the runs of five tokens (one permutation hashing, Li et al. 2012; empty bins take the
/// value of the next full one, Shrivastava and Li 2014).
pub fn signature(tokens: &[u32]) -> [u32; SIGNATURE] {
    let mut bins = [u32::MAX; SIGNATURE];
    for run in tokens.windows(RUN.min(tokens.len().max(1))) {
        let hash = hash(run);
        let bin = &mut bins[(hash % SIGNATURE as u64) as usize];
        *bin = (*bin).min((hash >> 32) as u32 & 0x7fff_ffff);
    }
    let full = bins;
    for (index, bin) in bins.iter_mut().enumerate() {
        if *bin == u32::MAX
            && let Some(step) = (1..SIGNATURE).find(|step| full[(index + step) % SIGNATURE] != u32::MAX)
        {
            *bin = full[(index + step) % SIGNATURE].wrapping_add((step as u32).wrapping_mul(0x9e37_79b9));
        }
    }
    bins
}

/// The estimated similarity of two documents, from 0 to 1.
pub fn similarity(left: &[u8], right: &[u8]) -> f64 {
    let equal = left.chunks_exact(4).zip(right.chunks_exact(4)).filter(|(left, right)| left == right).count();
    equal as f64 / SIGNATURE as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tokens: &[u32]) -> Vec<u8> {
        signature(tokens).iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn the_estimate_is_near_the_similarity() {
        let mut rng = Key::new(1).rng();
        let original: Vec<u32> = (0..5000).map(|_| rng.below(30_000) as u32).collect();
        for changed in [0, 50, 200, 800] {
            let mut copy = original.clone();
            (0..changed).for_each(|index| copy[index * 5000 / changed.max(1)] = 40_000);
            let runs = |tokens: &[u32]| tokens.windows(RUN).map(hash).collect::<std::collections::HashSet<_>>();
            let (a, b) = (runs(&original), runs(&copy));
            let exact = a.intersection(&b).count() as f64 / a.union(&b).count() as f64;
            let estimate = similarity(&bytes(&original), &bytes(&copy));
            // 64 bins: a standard deviation of at most 0.0625.
            assert!((exact - estimate).abs() < 0.16, "{changed}: {exact} {estimate}");
        }
    }

    #[test]
    fn heads_come_back() {
        let totals = Totals { documents: 1, sentences: 3, tokens: 70_000 };
        let head = Head { id: DocumentId { file: 7, ordinal: 9 }, cell: EXCLUDED, totals, hash: u64::MAX - 5 };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!((bytes.len(), Head::read(&bytes)), (Head::bytes(false), head));
    }

    #[test]
    fn short_documents_have_signatures_too() {
        assert_eq!(similarity(&bytes(&[1, 2]), &bytes(&[1, 2])), 1.0);
        assert!(similarity(&bytes(&[1, 2]), &bytes(&[1, 3])) < 0.5);
        assert_eq!(signature(&[]), [u32::MAX; SIGNATURE]);
    }
}
