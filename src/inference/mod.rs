//! A trained model, for those that only read it.
//!
//! - [`loaded_model`]: a model out of a run or checkpoint
//! - [`fill_mask`]: the most probable tokens for each \[MASK\] of a text

pub mod fill_mask;
pub mod loaded_model;
