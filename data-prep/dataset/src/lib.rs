//! A dataset: Parquet shards of samples, `vocab.txt`, and `manifest.json`, which is written last.
//!
//! [`Dataset`] reads one from a folder or URL; [`ShardWriter`] and [`write()`] make one. The format is described in
//! docs/reference/formats.md. Beside it stand what its readers and its makers share:
//!
//! - [`tokenizer`]: WordPiece ids by a vocab.txt; `tokenizer.json` for others
//! - [`random`]: keyed randomness that never changes
//! - [`parallel`]: independent tasks on several threads

mod ahead;
mod cache;
mod check;
mod column;
mod error;
mod file;
mod fit;
mod guard;
mod manifest;
mod open_shards;
pub mod parallel;
pub mod random;
mod read;
mod samples;
mod schema;
pub mod tokenizer;
mod usage;
mod vocabulary;
mod write;

pub use ahead::FetchAhead;
pub use error::DatasetError;
pub use fit::check_fit;
pub use manifest::{
    Corpus, Counts, HeldOut, Manifest, SampleRules, Shard, SourceCounts, VERSION, VocabularyFile, sha256_hex,
};
pub use manifest::{entropy, hex};
pub use read::Dataset;
pub use samples::{RowGroup, Samples};
pub use usage::TokenUsage;
pub use vocabulary::VocabularyFacts;
pub use write::{Sample, ShardWriter, shard_name, write};

/// The name of the manifest inside a dataset.
pub const MANIFEST: &str = "manifest.json";
/// The name of the vocabulary inside a dataset.
pub const VOCABULARY: &str = "vocab.txt";
/// Rows of a row group unless the preparation says otherwise: about 0.2 MB at 128 tokens.
pub const ROWS_PER_GROUP: usize = 1024;
/// `pair_label` of a sample without a pair objective.
pub const NO_PAIR: u8 = 255;
