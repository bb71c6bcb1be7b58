//! Corpus preparation. Turns text files into a sharded Parquet dataset, whose format the crate `lambert-dataset`
//! defines.
//!
//! - [`prep`]: the whole pipeline, restartable and with bounded memory
//! - [`source`]: files to raw documents
//! - [`extract`]: raw documents to paragraphs of prose
//! - [`sentences`]: paragraphs to sentences
//! - `record`: tokenized documents in the work folder
//! - `samples`: documents to training samples, with or without pairs
//! - [`vocab`]: vocabulary training
//! - [`grammar`]: synthetic corpora
//! - [`inspect`]: decoded samples and metadata of a dataset
//! - [`caught`]: panics of libraries that read damaged files
//! - [`statistics`]: lengths, token frequencies and duplicates of a dataset

pub mod caught;
pub mod extract;
pub mod grammar;
pub mod inspect;
pub mod prep;
mod record;
mod samples;
pub mod sentences;
pub mod source;
pub mod statistics;
pub mod vocab;
