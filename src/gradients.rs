//! The sum of the gradients over all ranks, in place in the flat buffer: one bucket, awaited at once.

use lambert_collective::Reducer;
use tch::Tensor;

use crate::error::Error;
use crate::torch;

/// Adds up `gradients` over all ranks; every rank has the same bits afterwards.
pub fn reduce(reducer: &mut dyn Reducer, gradients: &mut Tensor) -> Result<(), Error> {
    Ok(lambert_collective::all_reduce(reducer, torch::floats_mut(gradients), None)?)
}
