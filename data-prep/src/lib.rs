//! Text in, dataset out: documents, sentences, token ids, samples, Parquet. `lambert-dataset` has the format.
//!
//! - [`prep`]: a corpus to datasets, restartable, in bounded memory
//! - [`source`]: files to raw documents
//! - [`extract`]: raw documents to paragraphs of prose
//! - [`sentences`]: paragraphs to sentences
//! - `record`: a tokenized document in the work folder
//! - `samples`: documents to samples with or without pairs
//! - [`vocab`]: training a vocabulary
//! - [`grammar`]: a corpus where none is at hand
//! - [`inspect`]: a dataset for a person to look at

pub mod extract;
pub mod grammar;
pub mod inspect;
pub mod prep;
mod record;
mod samples;
pub mod sentences;
pub mod source;
pub mod vocab;
