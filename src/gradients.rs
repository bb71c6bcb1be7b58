//! The sum of the gradients over all ranks, in place in the flat buffer.

use lambert_collective::Collective;
use tch::Tensor;

use crate::error::Error;
use crate::torch;

/// Adds up `gradients` over all ranks; every rank has the same bits afterwards.
pub fn reduce(collective: &mut dyn Collective, gradients: &mut Tensor) -> Result<(), Error> {
    Ok(collective.all_reduce_sum_f32(torch::floats_mut(gradients))?)
}
