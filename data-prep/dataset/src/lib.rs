//! Dataset format: Parquet shards of samples, the vocabulary, and `manifest.json`, which is written last.
//!
//! [`Dataset`] reads a dataset from a directory or URL. [`ShardWriter`] and [`write()`] write a dataset.
//! docs/reference/formats.md describes the format. The crate also contains code that readers and writers share:
//!
//! - [`tokenizer`]: tokenizers for a vocab.txt or a tokenizer.json
//! - [`random`]: random numbers that are stable functions of a key
//! - [`ranges`]: checksums of the row groups of each shard
//! - [`token_counts`]: occurrences of each token in a dataset
//! - [`parallel`]: independent tasks on several threads

mod cache;
mod check;
mod column;
mod compatibility;
mod digest;
mod error;
mod manifest;
mod open_shards;
mod panics;
pub mod parallel;
mod prefetch;
pub mod random;
pub mod ranges;
mod read;
mod rejected;
mod samples;
mod schema;
mod shard_file;
mod shard_reader;
mod sizes;
pub mod token_counts;
mod token_usage;
pub mod tokenizer;
mod vocabulary;
mod write;

pub use compatibility::{ModelVocabulary, check_compatibility, text_case};
pub use digest::{Digest, hex, sha256_hex};
pub use error::DatasetError;
pub use manifest::entropy;
pub use manifest::{Corpus, Counts, HeldOut, Manifest, SampleRules, Shard, SourceCounts, VERSION, VocabularyFile};
pub use prefetch::Prefetch;
pub use ranges::ShardRanges;
pub use read::Dataset;
pub use rejected::{REJECTED, RejectedExample};
pub use samples::{RowGroup, Samples};
pub use token_usage::TokenUsage;
pub use vocabulary::VocabularyInfo;
pub use write::{Sample, ShardWriter, WrittenShard, shard_name, write};

/// File name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// File name of the vocabulary of a WordPiece tokenizer.
pub const VOCABULARY: &str = "vocab.txt";
/// File name of the vocabulary of other tokenizers.
pub const TOKENIZER: &str = "tokenizer.json";
/// Default number of rows per row group. With 128 tokens per row, a row group has about 0.2 MB.
pub const ROWS_PER_GROUP: usize = 1024;
/// `pair_label` of a sample without a pair objective.
pub const NO_PAIR: u8 = 255;
