//! The sum of the gradients over all ranks, in place in the flat buffer.

use lambert_collective::Collective;

use crate::error::Error;
use crate::state::TrainState;

/// Adds up the gradients of `state` over all ranks; every rank has the same bits afterwards.
pub fn reduce(collective: &mut dyn Collective, state: &mut TrainState) -> Result<(), Error> {
    let kernels = state.parameters.kernels().clone();
    let mut reduced = Ok(());
    kernels.with_floats(state.gradients_mut(), &mut |gradients| reduced = collective.all_reduce_sum_f32(gradients));
    Ok(reduced?)
}
