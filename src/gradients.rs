//! The sum of the gradients over all ranks, in place in the flat buffer: one bucket, awaited at once.

use lambert_collective::{Reducer, all_reduce};

use crate::error::Error;
use crate::state::TrainState;

/// Adds up the gradients of `state` over all ranks; every rank has the same bits afterwards.
pub fn reduce(reducer: &mut dyn Reducer, state: &mut TrainState) -> Result<(), Error> {
    let kernels = state.parameters.kernels().clone();
    let mut reduced = Ok(());
    kernels.with_floats(state.gradients_mut(), &mut |gradients| reduced = all_reduce(reducer, gradients, None));
    Ok(reduced?)
}
