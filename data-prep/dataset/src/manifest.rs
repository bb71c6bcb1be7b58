//! `manifest.json`: content and provenance of a dataset.

use std::collections::BTreeMap;

use lambert_config::prep::{FormatName, MAX_ROW_GROUP_ROWS, Packing, Pair};
use lambert_store::names;
use serde::{Deserialize, Serialize};

use crate::tokenizer::{Special, TokenizerModel};

/// Format version that this program writes and reads.
pub const VERSION: u32 = 1;
/// Maximum size of a manifest, bytes: enough for some 20 million row groups.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Maximum size of a vocabulary, bytes.
const MAX_VOCABULARY_BYTES: u64 = 256 << 20;

/// Content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// `train` or `held-out`.
    pub split: String,
    /// sha256 over all inputs except the corpus, such as the configuration, the vocabulary and the version. Empty if no
    /// preparation job made the dataset.
    pub preparation: String,
    /// Corpus.
    #[serde(default)]
    pub corpus: Corpus,
    /// Maximum sample length in tokens, special tokens included.
    pub sequence_length: usize,
    /// True if text was lowercased before tokenization. WordPiece also strips accents then.
    pub lowercase: bool,
    /// Vocabulary.
    pub vocabulary: VocabularyFile,
    /// Ids of the special tokens.
    pub special: Special,
    /// Parameters of sample construction.
    pub samples: SampleRules,
    /// Counts of documents, samples and tokens.
    pub counts: Counts,
    /// Statistics of each source, in configuration order. Both splits have the same statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceCounts>,
    /// Achieved held-out fraction. Present only if the random assignment of documents missed the configured fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOut>,
    /// Entropy of the token frequencies in all samples, in nats per token. `[CLS]` and `[SEP]` are not counted. This
    /// entropy is the loss of the unigram baseline.
    pub unigram_entropy: f64,
    /// Parquet files, in row order.
    pub shards: Vec<Shard>,
}

/// Input of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corpus {
    /// Total size of the input files before decompression, bytes.
    pub bytes: u64,
    /// sha256 over all input files, in order. Each file contributes its source index and its own sha256. Empty if no
    /// preparation job made the dataset.
    pub sha256: String,
}

/// Vocabulary file of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyFile {
    /// File name.
    pub path: String,
    /// Model of the tokenizer.
    #[serde(default, skip_serializing_if = "TokenizerModel::is_word_piece")]
    pub model: TokenizerModel,
    /// Number of tokens.
    pub size: usize,
    /// File size, bytes.
    pub bytes: u64,
    /// sha256 of the file.
    pub sha256: String,
}

/// Parameters of sample construction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRules {
    /// Sentence-pair objective.
    pub pair: Pair,
    /// Packing of samples without a pair.
    #[serde(default)]
    pub packing: Packing,
    /// Probability that a sample has a random target length below the maximum length.
    pub short_sequence_probability: f64,
    /// Number of passes over the corpus.
    pub passes: usize,
    /// Configured held-out fraction of the tokens.
    pub held_out: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Held-out fraction of the tokens of a corpus. Duplicate documents are not counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Configured fraction.
    #[serde(rename = "asked")]
    pub configured: f64,
    /// Achieved fraction, to six decimals.
    #[serde(rename = "reached")]
    pub achieved: f64,
    /// Minimum number of tokens per block, if documents were split into blocks. Absent if whole documents were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u64>,
}

/// Counts of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of documents used.
    pub documents: u64,
    /// Number of sentences in these documents.
    pub sentences: u64,
    /// Number of rows.
    pub samples: u64,
    /// Number of tokens in all rows, including special tokens.
    pub tokens: u64,
    /// Number of rows with a replaced (NSP) or swapped (SOP) second segment.
    pub positive_pairs: u64,
    /// Number of rejected or repaired items by reason, in both splits together.
    pub rejected: BTreeMap<String, u64>,
}

/// Statistics of one source, for both splits together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCounts {
    /// Input format.
    pub format: FormatName,
    /// True for a source from `[[exclude]]`.
    pub excluded: bool,
    /// Number of files. A bzip2 file that is read in ranges of whole streams counts once per range.
    pub files: u64,
    /// Size of the files before decompression, bytes.
    pub stored_bytes: u64,
    /// Size of the documents after decompression, including markup, bytes.
    pub text_bytes: u64,
    /// Number of documents found.
    pub found: u64,
    /// Number of documents used.
    pub documents: u64,
    /// Number of documents removed because they equal or resemble another document.
    pub duplicates: u64,
    /// Number of sentences, including the sentences of duplicates.
    pub sentences: u64,
    /// Number of tokens, including the tokens of duplicates.
    pub tokens: u64,
}

/// Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// File name.
    pub path: String,
    /// Number of rows.
    pub rows: u64,
    /// File size, bytes.
    pub bytes: u64,
    /// sha256 of the file.
    pub sha256: String,
    /// Number of rows in each row group.
    pub row_groups: Vec<u64>,
}

impl Manifest {
    /// Serializes `manifest.json`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // Serialization cannot fail for plain structs with string keys. If it failed, the file would be empty, and
        // readers would reject it.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Parses and validates `manifest.json`.
    ///
    /// # Errors
    /// The message describes the problem and the expected content.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct VersionHeader {
            version: u32,
        }
        let header: VersionHeader = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if header.version != VERSION {
            return Err(format!("format version {}, this program reads {VERSION}", header.version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        manifest.check().map(|()| manifest)
    }

    /// Returns the size of all shards, bytes. The sizes of an untrusted manifest may add up to more than `u64::MAX`, which
    /// is then the result.
    #[must_use]
    pub fn shard_bytes(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.bytes))
    }

    fn check(&self) -> Result<(), String> {
        let vocabulary = &self.vocabulary;
        let files = self.shards.iter().map(|shard| (&shard.path, &shard.sha256));
        for (name, sha256) in files.chain([(&vocabulary.path, &vocabulary.sha256)]) {
            if name.contains('/') || name.starts_with('.') || names::check(name).is_err() {
                return Err(format!("{name:?} is not a file name"));
            }
            // The sha256 is also the file name of the cached copy.
            if sha256.len() != 64 || !sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(format!("{name}: the sha256 is {sha256:?}, expected 64 hexadecimal digits"));
            }
        }
        self.shards.iter().try_for_each(Shard::check)?;
        let rows = sum(self.shards.iter().map(|shard| shard.rows));
        if rows != Some(self.counts.samples) {
            let rows = format_count(rows);
            return Err(format!("counts.samples is {}, but the shards have {rows} rows", self.counts.samples));
        }
        if !(1..=usize::from(u16::MAX)).contains(&self.sequence_length) {
            return Err(format!("sequence_length is {}, expected 1 to {}", self.sequence_length, u16::MAX));
        }
        // Each token takes at least one byte.
        if vocabulary.size as u64 > vocabulary.bytes || vocabulary.bytes > MAX_VOCABULARY_BYTES {
            let (size, bytes) = (vocabulary.size, vocabulary.bytes);
            return Err(format!(
                "a vocabulary of {size} tokens in {bytes} bytes, expected at most {MAX_VOCABULARY_BYTES}"
            ));
        }
        match self.special.all().iter().find(|&&id| id as usize >= self.vocabulary.size) {
            Some(id) => Err(format!("special id {id} in a vocabulary of {}", self.vocabulary.size)),
            None => Ok(()),
        }
    }
}

impl Shard {
    fn check(&self) -> Result<(), String> {
        let rows = sum(self.row_groups.iter().copied());
        if rows != Some(self.rows) {
            return Err(format!("{}: {} rows, but its row groups have {}", self.path, self.rows, format_count(rows)));
        }
        match self.row_groups.iter().find(|&&rows| rows > MAX_ROW_GROUP_ROWS) {
            Some(rows) => {
                Err(format!("{}: a row group of {rows} rows, expected at most {MAX_ROW_GROUP_ROWS}", self.path))
            }
            None => Ok(()),
        }
    }
}

/// Returns the sum of `numbers`, or `None` on overflow.
fn sum(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    numbers.into_iter().try_fold(0_u64, u64::checked_add)
}

fn format_count(sum: Option<u64>) -> String {
    sum.map_or_else(|| "too many".to_owned(), |sum| sum.to_string())
}

/// Returns the entropy of the distribution that `counts` describes, in nats per item. Rounds it to six decimals, so
/// that the result is the same on every machine.
pub fn entropy(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    if total == 0.0 {
        // The sum of no terms would be -0.
        return 0.0;
    }
    let nats: f64 = counts
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| {
            let share = count as f64 / total;
            -share * share.ln()
        })
        .sum();
    (nats * 1e6).round() / 1e6
}
