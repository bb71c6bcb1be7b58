//! `manifest.json`: what a dataset holds and how it was made.

use std::collections::BTreeMap;

use lambert_config::prep::{FormatName, Packing, Pair};
use lambert_store::names;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tokenizer::Special;

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;
/// Bytes of a manifest that is read: those of some 20 million row groups.
pub const LARGEST_MANIFEST: u64 = 256 << 20;
/// Bytes of a vocabulary that is read.
const LARGEST_VOCABULARY: u64 = 256 << 20;
/// Rows of a row group that is read: a row group is in memory as a whole.
const LARGEST_ROW_GROUP: u64 = 1 << 24;

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    /// `train` or `held-out`.
    pub split: String,
    /// What decided these bytes besides the corpus (configuration, vocabulary, version), as a sha256; empty where no
    /// preparation made them.
    pub preparation: String,
    /// The corpus.
    #[serde(default)]
    pub corpus: Corpus,
    /// Tokens of a sample at most, special pieces included.
    pub sequence_length: usize,
    /// Whether text was lowercased and stripped of accents before it was split into pieces.
    pub lowercase: bool,
    /// The vocabulary.
    pub vocabulary: VocabularyFile,
    /// The ids of the special pieces.
    pub special: Special,
    /// How samples were cut.
    pub samples: SampleRules,
    /// How much went in and came out.
    pub counts: Counts,
    /// What the preparation read, in the order of its configuration; the same in both splits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceCounts>,
    /// The held-out share, where the draw of whole documents did not meet it; absent where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOut>,
    /// Nats per piece: the entropy of the pieces of the samples, special ones left out; the loss of the unigram baseline.
    pub unigram_entropy: f64,
    /// The Parquet files, in the order of their rows.
    pub shards: Vec<Shard>,
}

/// What was read to make a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corpus {
    /// Bytes of all input files as they are stored.
    pub bytes: u64,
    /// Of the number of the source and the sha256 of each input file, in their order; empty where no preparation made
    /// the dataset.
    pub sha256: String,
}

/// The vocabulary of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyFile {
    /// Its name beside the manifest.
    pub path: String,
    /// Pieces.
    pub size: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// Of the file.
    pub sha256: String,
}

/// How the samples of a dataset were cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRules {
    /// The pair objective.
    pub pair: Pair,
    /// What fills a sample without a pair.
    #[serde(default)]
    pub packing: Packing,
    /// Share of the samples that aimed at a random shorter length.
    pub short_sequence_probability: f64,
    /// How often each document was used.
    pub passes: usize,
    /// Share of the tokens that was to be held out.
    pub held_out: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

/// The share of a corpus that is held out, in tokens of the documents, each counted once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// The configured share.
    pub asked: f64,
    /// The share that is held out, to six decimals.
    pub reached: f64,
    /// Tokens of a block at least, where documents were split into blocks; absent where whole documents were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<u64>,
}

/// How much went into a dataset and came out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Documents used.
    pub documents: u64,
    /// Sentences in them.
    pub sentences: u64,
    /// Rows.
    pub samples: u64,
    /// Tokens of all rows, special pieces included.
    pub tokens: u64,
    /// Rows whose second segment was replaced or swapped.
    pub positive_pairs: u64,
    /// What was left out or mended, and how often, by reason; for the whole preparation, not only this split.
    pub rejected: BTreeMap<String, u64>,
}

/// What was read of one source, for the whole preparation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCounts {
    /// What its files hold.
    pub format: FormatName,
    /// Whether its documents are only there to be kept out.
    pub excluded: bool,
    /// Files, or runs of whole bzip2 streams of one.
    pub files: u64,
    /// Their bytes as stored.
    pub stored_bytes: u64,
    /// Bytes of their documents, decompressed, markup included.
    pub text_bytes: u64,
    /// Documents that were found in them.
    pub found: u64,
    /// Documents used.
    pub documents: u64,
    /// Documents that were left out because another one equals or resembles them.
    pub duplicates: u64,
    /// Sentences, those of duplicates included.
    pub sentences: u64,
    /// Tokens, those of duplicates included.
    pub tokens: u64,
}

/// One Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its name beside the manifest.
    pub path: String,
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Of the file.
    pub sha256: String,
    /// Rows of each of its row groups.
    pub row_groups: Vec<u64>,
}

impl Manifest {
    /// The bytes of `manifest.json`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // Serialising plain structs with string keys cannot fail; an empty file would be refused on reading.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads `manifest.json`; the error says what was expected.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if head.version != VERSION {
            return Err(format!("format version {}, this program reads {VERSION}", head.version));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        manifest.check().map(|()| manifest)
    }

    fn check(&self) -> Result<(), String> {
        let vocabulary = &self.vocabulary;
        let files = self.shards.iter().map(|shard| (&shard.path, &shard.sha256));
        for (name, sha256) in files.chain([(&vocabulary.path, &vocabulary.sha256)]) {
            if name.contains('/') || name.starts_with('.') || names::check(name).is_err() {
                return Err(format!("{name:?} is not a file name"));
            }
            // It is a file name, too: that of a copy.
            if sha256.len() != 64 || !sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(format!("{name}: the sha256 is {sha256:?}, expected 64 hexadecimal digits"));
            }
        }
        self.shards.iter().try_for_each(Shard::check)?;
        let rows = sum(self.shards.iter().map(|shard| shard.rows));
        if rows != Some(self.counts.samples) {
            let rows = in_words(rows);
            return Err(format!("{} samples counted, but the shards have {rows} rows", self.counts.samples));
        }
        if !(1..=usize::from(u16::MAX)).contains(&self.sequence_length) {
            return Err(format!("sequence_length is {}, expected 1 to {}", self.sequence_length, u16::MAX));
        }
        // A token is a line, which ends with a byte of its own.
        if vocabulary.size as u64 > vocabulary.bytes || vocabulary.bytes > LARGEST_VOCABULARY {
            let (size, bytes) = (vocabulary.size, vocabulary.bytes);
            return Err(format!(
                "a vocabulary of {size} tokens in {bytes} bytes, expected {LARGEST_VOCABULARY} at most"
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
            return Err(format!("{}: {} rows, but its row groups have {}", self.path, self.rows, in_words(rows)));
        }
        match self.row_groups.iter().find(|&&rows| rows > LARGEST_ROW_GROUP) {
            Some(rows) => {
                Err(format!("{}: a row group of {rows} rows, expected {LARGEST_ROW_GROUP} at most", self.path))
            }
            None => Ok(()),
        }
    }
}

/// The sum of some numbers; `None` if it is too large for one.
fn sum(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    numbers.into_iter().try_fold(0_u64, u64::checked_add)
}

fn in_words(sum: Option<u64>) -> String {
    sum.map_or_else(|| "too many".to_owned(), |sum| sum.to_string())
}

/// Nats per item of a distribution given by counts; to six decimals, so that it is the same on every machine.
pub fn entropy(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
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

/// The sha256 of `bytes`, in hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A digest in hexadecimal digits.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
