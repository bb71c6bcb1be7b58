//! Inference with a trained model.
//!
//! - [`loaded_model`]: model loaded from a run or checkpoint
//! - [`texts`]: lines of text as micro-batches
//! - [`eval`]: evaluation on a held-out dataset
//! - [`fill_mask`]: top-k predictions for each \[MASK\] of a text
//! - [`score`]: pseudo-log-likelihood of texts
//! - [`embed`]: embeddings of texts, as a Parquet file

pub mod embed;
pub mod eval;
pub mod fill_mask;
pub mod loaded_model;
pub mod score;
pub mod texts;
