//! The code of a segment.

use tch::Tensor;

use super::Dropout;
use crate::model::input::Input;

/// Computes a segment of a network.
pub trait Block {
    /// The segment's outputs. `inputs` are the outputs of other segments that it reads, in its description's order: first the
    /// hidden states \[rows, width, hidden\], where it has any.
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor>;
}
