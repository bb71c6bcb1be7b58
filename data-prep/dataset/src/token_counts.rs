//! `token-counts.json`: number of occurrences of each token in a dataset. The file is optional.

use serde::{Deserialize, Serialize};

use crate::manifest::entropy;
use crate::{Dataset, DatasetError, Manifest};

/// File name.
pub const TOKEN_COUNTS: &str = "token-counts.json";
/// Maximum size, bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Largest difference between the entropy of the counts and the one in the manifest, which has six decimals.
const ENTROPY_TOLERANCE: f64 = 2e-6;

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenCounts {
    /// SHA-256 of the vocabulary.
    vocabulary_sha256: String,
    /// Number of occurrences of each token in all samples, by token ID. Special tokens that a sample has by its form are not
    /// counted.
    counts: Vec<u64>,
}

/// Serializes `token-counts.json`.
#[must_use]
pub fn to_json(vocabulary_sha256: &str, counts: &[u64]) -> Vec<u8> {
    let content = TokenCounts { vocabulary_sha256: vocabulary_sha256.to_owned(), counts: counts.to_vec() };
    // Serialization cannot fail for a string and integers.
    let mut bytes = serde_json::to_vec(&content).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Parses the file, and checks that the counts are those of the dataset with this manifest: their entropy is in the manifest.
fn parse(bytes: &[u8], manifest: &Manifest) -> Result<Vec<u64>, String> {
    let TokenCounts { vocabulary_sha256, counts } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let (size, expected) = (manifest.vocabulary.size, manifest.unigram_entropy);
    if counts.len() != size {
        return Err(format!("it counts {} tokens, but the vocabulary of the dataset has {size}", counts.len()));
    }
    if vocabulary_sha256 != manifest.vocabulary.sha256 {
        return Err("it counts tokens of a different vocabulary than the dataset's".to_owned());
    }
    let (total, tokens) = (counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count)), manifest.counts.tokens);
    if total.is_none_or(|total| total > tokens) {
        return Err(format!("its counts add up to more than the {tokens} tokens of the dataset"));
    }
    let found = entropy(&counts);
    if (found - expected).abs() > ENTROPY_TOLERANCE {
        return Err(format!("the entropy of its counts is {found}, but unigram_entropy in the manifest is {expected}"));
    }
    Ok(counts)
}

impl Dataset {
    /// Reads `token-counts.json`.
    ///
    /// # Errors
    /// The file is missing or cannot be read, or its counts are not those of this dataset.
    pub fn token_counts(&self) -> Result<Vec<u64>, DatasetError> {
        let file = format!("{}/{TOKEN_COUNTS}", self.url());
        match self.store.get_at_most(TOKEN_COUNTS, MAX_BYTES) {
            Ok(bytes) => parse(&bytes, self.manifest()).map_err(|message| DatasetError::TokenCounts { file, message }),
            Err(error) if error.is_not_found() => Err(DatasetError::NoTokenCounts { file }),
            Err(source) => Err(self.store_error(source)),
        }
    }
}
