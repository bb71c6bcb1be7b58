//! Ranks of a run, for updates that they compute together.

use std::ops::Range;

use lambert_collective::Reducer;

use super::gradients::BucketedAllReduce;
use super::phases::{Phase, PhaseClock};
use crate::error::Error;
use crate::optim::Ranks;
use crate::state::TrainState;
use crate::torch;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;
use crate::worker::trace::span;

/// Implements [`Ranks`] for a run. The time of its sums counts as communication.
pub struct UpdateRanks<'a, 'k> {
    pub session: &'a Session,
    pub reducer: &'a mut dyn Reducer,
    pub clock: &'a mut PhaseClock<'k>,
}

impl Ranks for UpdateRanks<'_, '_> {
    fn rank(&self) -> usize {
        self.session.rank
    }

    fn world(&self) -> usize {
        self.session.world
    }

    fn sum(&mut self, state: &mut TrainState, range: Range<usize>) -> Result<(), Error> {
        // A rank whose GPU is slow must not be in the phase of the all-reduce.
        torch::guard(|| self.session.kernels.wait())?;
        self.clock.end(Phase::Optimizer)?;
        self.session.control.set_phase(WorkerPhase::AllReduce);
        let _sum = span!("all-reduce of matrices");
        let bucket = self.session.config.cluster.all_reduce.bucket_elements(self.session.nccl.is_some());
        BucketedAllReduce::new(Some(&mut *self.reducer), bucket, false).within(range).finish(state)?;
        self.session.control.set_phase(WorkerPhase::Step);
        self.clock.end(Phase::Communication)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
