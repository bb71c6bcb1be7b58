//! Interface of a segment's implementation.

use tch::Tensor;

use super::Dropout;
use crate::model::input::Input;

/// Forward computation of a network segment.
pub trait SegmentBlock {
    /// Computes the segment's outputs. `inputs` are the outputs of other segments that it reads, in the order of its
    /// description; the hidden states \[batch, sequence, hidden\], if it reads any, come first.
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor>;
}
