//! Inference with a trained model.
//!
//! - [`loaded_model`]: model loaded from a run or checkpoint
//! - [`fill_mask`]: top-k predictions for each \[MASK\] of a text

pub mod fill_mask;
pub mod loaded_model;
