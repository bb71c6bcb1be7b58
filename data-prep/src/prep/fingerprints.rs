//! Document fingerprints. They are the data for duplicate detection. They are kept separate from the tokens.

use super::totals::DocumentTotals;
use crate::record::DocumentId;
use lambert_dataset::random::Key;

/// Number of values in a MinHash signature.
pub const SIGNATURE_VALUES: usize = 64;
/// Tokens per shingle in the similarity estimate.
const SHINGLE_TOKENS: usize = 5;
/// Size of a fingerprint without a signature, bytes.
const FINGERPRINT_BYTES: usize = 32;
/// Cell number of documents from `exclude`.
pub const EXCLUDED: u16 = u16::MAX;

/// Metadata of a document, kept separate from its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentFingerprint {
    /// Document ID.
    pub id: DocumentId,
    /// Cell, or [`EXCLUDED`].
    pub cell: u16,
    /// Counts of the document.
    pub totals: DocumentTotals,
    /// Hash of all tokens.
    pub hash: u64,
}

impl DocumentFingerprint {
    /// Size of a fingerprint with or without a signature, bytes.
    pub const fn size(has_signature: bool) -> usize {
        if has_signature { FINGERPRINT_BYTES + 4 * SIGNATURE_VALUES } else { FINGERPRINT_BYTES }
    }

    /// Appends the fingerprint without its signature to `output`.
    pub fn write(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(&self.hash.to_le_bytes());
        let words = [self.id.file, self.id.ordinal, self.totals.sentences as u32, self.totals.tokens as u32];
        words.iter().for_each(|word| output.extend_from_slice(&word.to_le_bytes()));
        output.extend_from_slice(&u64::from(self.cell).to_le_bytes());
    }

    /// Parses the output of [`DocumentFingerprint::write`].
    pub fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            id: DocumentId { file: word(8), ordinal: word(12) },
            cell: word(24) as u16,
            totals: DocumentTotals { documents: 1, sentences: u64::from(word(16)), tokens: u64::from(word(20)) },
            hash: u64::from(word(0)) | u64::from(word(4)) << 32,
        }
    }
}

/// Hashes all tokens. In a corpus of 20 million documents, the probability that any two hashes collide is 1e-5.
pub fn token_hash(tokens: &[u32]) -> u64 {
    // A rolling multiplication and one final mix suffice, because the input is not adversarial.
    let mut state = tokens.len() as u64;
    for &token in tokens {
        state = (state.rotate_left(29) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    Key::new(state).value()
}

/// Computes the MinHash signature of the five-token shingles by one-permutation hashing (Li et al. 2012). The value of
/// an empty bin is the value of the next full bin plus an offset (Shrivastava and Li 2014).
pub fn signature(tokens: &[u32]) -> [u32; SIGNATURE_VALUES] {
    let mut bins = [u32::MAX; SIGNATURE_VALUES];
    for shingle in tokens.windows(SHINGLE_TOKENS.min(tokens.len().max(1))) {
        let hash = token_hash(shingle);
        let bin = &mut bins[(hash % SIGNATURE_VALUES as u64) as usize];
        *bin = (*bin).min((hash >> 32) as u32 & 0x7fff_ffff);
    }
    let full = bins;
    for (index, bin) in bins.iter_mut().enumerate() {
        if *bin == u32::MAX
            && let Some(step) = (1..SIGNATURE_VALUES).find(|step| full[(index + step) % SIGNATURE_VALUES] != u32::MAX)
        {
            *bin = full[(index + step) % SIGNATURE_VALUES].wrapping_add((step as u32).wrapping_mul(0x9e37_79b9));
        }
    }
    bins
}

/// Estimates the Jaccard similarity of two documents from their signatures, 0 to 1.
pub fn similarity(left: &[u8], right: &[u8]) -> f64 {
    let equal = left.chunks_exact(4).zip(right.chunks_exact(4)).filter(|(left, right)| left == right).count();
    equal as f64 / SIGNATURE_VALUES as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(tokens: &[u32]) -> Vec<u8> {
        signature(tokens).iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn the_similarity_estimate_is_close_to_the_jaccard_index() {
        let mut rng = Key::new(1).rng();
        let original: Vec<u32> = (0..5000).map(|_| rng.below(30_000) as u32).collect();
        for changed in [0, 50, 200, 800] {
            let mut copy = original.clone();
            (0..changed).for_each(|index| copy[index * 5000 / changed.max(1)] = 40_000);
            let shingles = |tokens: &[u32]| {
                tokens.windows(SHINGLE_TOKENS).map(token_hash).collect::<std::collections::HashSet<_>>()
            };
            let (a, b) = (shingles(&original), shingles(&copy));
            let exact = a.intersection(&b).count() as f64 / a.union(&b).count() as f64;
            let estimate = similarity(&bytes(&original), &bytes(&copy));
            // 64 bins: the standard deviation is at most 0.0625.
            assert!((exact - estimate).abs() < 0.16, "{changed}: {exact} {estimate}");
        }
    }

    #[test]
    fn fingerprints_round_trip() {
        let totals = DocumentTotals { documents: 1, sentences: 3, tokens: 70_000 };
        let fingerprint =
            DocumentFingerprint { id: DocumentId { file: 7, ordinal: 9 }, cell: EXCLUDED, totals, hash: u64::MAX - 5 };
        let mut bytes = Vec::new();
        fingerprint.write(&mut bytes);
        assert_eq!((bytes.len(), DocumentFingerprint::read(&bytes)), (DocumentFingerprint::size(false), fingerprint));
    }

    #[test]
    fn short_documents_have_signatures() {
        assert_eq!(similarity(&bytes(&[1, 2]), &bytes(&[1, 2])), 1.0);
        assert!(similarity(&bytes(&[1, 2]), &bytes(&[1, 3])) < 0.5);
        assert_eq!(signature(&[]), [u32::MAX; SIGNATURE_VALUES]);
    }
}
