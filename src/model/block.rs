//! Interface that each segment of a network implements.

use tch::Tensor;

use super::Dropout;
use crate::model::input::Input;

/// Forward computation of a network segment.
pub trait SegmentBlock {
    /// Computes the outputs of the segment. `inputs` are the outputs of other segments, in the order of the network
    /// description. If the segment reads hidden states \[batch, sequence, hidden\], they come first.
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor>;
}
