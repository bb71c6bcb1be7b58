//! Text in, dataset out: documents, sentences, token ids, samples, Parquet; and the same dataset as it is read.
//!
//! - [`dataset`]: shards of samples and their manifest, read and written
//! - [`random`]: keyed randomness that never changes
//! - [`tokenizer`]: WordPiece ids by a vocab.txt; `tokenizer.json` for others

pub mod dataset;
pub mod random;
pub mod tokenizer;
