//! Corpus preparation: text files become a sharded Parquet dataset. `lambert-dataset` defines the dataset format.
//!
//! - [`prep`]: the whole pipeline, restartable and in bounded memory
//! - [`source`]: files to raw documents
//! - [`extract`]: raw documents to paragraphs of prose
//! - [`sentences`]: paragraphs to sentences
//! - `record`: tokenized documents in the work folder
//! - `samples`: documents to training samples, with or without pairs
//! - [`vocab`]: WordPiece vocabulary training
//! - [`grammar`]: synthetic corpora
//! - [`inspect`]: decoded samples and metadata of a dataset

pub mod extract;
pub mod grammar;
pub mod inspect;
pub mod prep;
mod record;
mod samples;
pub mod sentences;
pub mod source;
pub mod vocab;
