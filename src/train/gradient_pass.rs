//! The gradient of a step over all ranks: passes over this rank's samples, and the sum. As a whole; or in two halves, whose norms
//! tell how noisy it is.

use lambert_collective::{Group, Reducer};
use lambert_control::GradientNoise;
use lambert_dataset::random::Key;
use tch::Tensor;

use super::exact::ExactSum;
use super::gradients::{self, Exchange};
use super::noise;
use super::step;
use crate::data::{GlobalBatch, RankBatch};
use crate::error::Error;
use crate::objective::Objective;
use crate::objective::totals::Totals;
use crate::state::TrainState;
use crate::torch;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;

/// One step's passes.
pub struct GradientPass<'a> {
    pub session: &'a Session,
    pub objective: &'a Objective,
    /// This rank's part of the global batch.
    pub batch: &'a GlobalBatch,
    pub dropout: Key,
    /// This rank has no samples for the step, which nobody is to make.
    pub spoils: bool,
}

/// What they came to, beside the gradient.
#[derive(Default)]
pub struct GradientStats {
    /// Totals of each share of the batch, and in it of each of the rank's parts.
    pending: Vec<Vec<step::Pending>>,
    /// The norm of each half, f64 \[\], where the batch was taken in halves.
    halves: Vec<Tensor>,
    /// Seconds of forward and backward passes.
    pub seconds: f64,
    /// Seconds of the sums that nothing hid.
    pub communicate: f64,
}

impl GradientPass<'_> {
    /// Leaves the gradient over all ranks in `state`; all call it together.
    ///
    /// # Errors
    /// Memory runs out, or a rank is gone.
    pub fn gradient(
        &self,
        state: &mut TrainState,
        group: &mut dyn Group,
        reducer: &mut dyn Reducer,
        watch: &mut Stopwatch,
    ) -> Result<GradientStats, Error> {
        let session = self.session;
        let mut passed = GradientStats::default();
        if !session.config.metrics.measures_noise(state.step) {
            self.share(self.batch.whole(), state, group, reducer, watch, &mut passed)?;
            return Ok(passed);
        }
        let [first, second] = self.batch.halves();
        self.share(first, state, group, reducer, watch, &mut passed)?;
        let first = torch::guard(|| {
            passed.halves.push(state.gradient_norm());
            state.gradients_mut().copy()
        })?;
        self.share(second, state, group, reducer, watch, &mut passed)?;
        torch::guard(|| {
            passed.halves.push(state.gradient_norm());
            *state.gradients_mut() += first;
        })?;
        Ok(passed)
    }

    fn share(
        &self,
        share: RankBatch<'_>,
        state: &mut TrainState,
        group: &mut dyn Group,
        reducer: &mut dyn Reducer,
        watch: &mut Stopwatch,
        passed: &mut GradientStats,
    ) -> Result<(), Error> {
        let session = self.session;
        let control = &session.control;
        control.phase(WorkerPhase::Step);
        let pending = match session.config.cluster.all_reduce.canonical {
            false => {
                let passes = span!("forward and backward");
                let (pending, exchange) = self.in_buckets(share, state, reducer)?;
                // Without overlap the sum begins now: what a device has yet to compute is no part of its time.
                if session.world > 1 && !gradients::overlaps(session) {
                    torch::guard(|| session.kernels.wait())?;
                }
                drop(passes);
                passed.seconds += watch.lap();
                control.phase(WorkerPhase::Exchange);
                let _sum = span!("all-reduce");
                exchange.finish(state)?;
                pending
            }
            true => {
                let passes = span!("forward and backward");
                let (pending, sum) = self.exactly(share, state)?;
                drop(passes);
                passed.seconds += watch.lap();
                control.phase(WorkerPhase::Exchange);
                let _sum = span!("all-reduce");
                gradients::sum_exactly(group, state, sum)?;
                pending
            }
        };
        passed.communicate += watch.lap();
        passed.pending.push(pending);
        Ok(())
    }

    /// GradientPass, and the sum of the gradients over all ranks beside them, as far as it can be.
    fn in_buckets<'r>(
        &self,
        share: RankBatch<'_>,
        state: &mut TrainState,
        reducer: &'r mut dyn Reducer,
    ) -> Result<(Vec<step::Pending>, Exchange<'r>), Error> {
        let session = self.session;
        let others = (session.world > 1).then_some(reducer);
        let bucket = session.config.cluster.all_reduce.bucket_elements();
        let mut exchange = Exchange::new(others, bucket, gradients::overlaps(session));
        let mut are_final = |state: &TrainState, elements| exchange.are_final(state, elements);
        let pending = step::forward_backward(self.objective, state, share, self.dropout, &mut are_final);
        let pending = pending?;
        self.spoil(state)?;
        Ok((vec![pending], exchange))
    }

    /// GradientPass over one part after the other, and a sum that has the same bits in every world.
    fn exactly(&self, share: RankBatch<'_>, state: &mut TrainState) -> Result<(Vec<step::Pending>, ExactSum), Error> {
        let mut sum = ExactSum::new(state.gradients_mut().numel());
        let add = |state: &mut TrainState| gradients::add_exactly(state, &mut sum);
        let pending = step::leaf_by_leaf(self.objective, state, share, self.dropout, add);
        let pending = pending?;
        self.spoil(state)?;
        Ok((pending, sum))
    }

    fn spoil(&self, state: &mut TrainState) -> Result<(), Error> {
        if self.spoils {
            step::spoil(state)?;
        }
        Ok(())
    }
}

/// What is known of the passes once the device has computed it.
pub struct Fetched {
    /// Of each share of the batch, and in it of each of the rank's parts.
    pub totals: Vec<Vec<Totals>>,
    /// The L2 norm of the whole gradient.
    pub norm: f64,
    /// What the halves say of it.
    pub noise: Option<GradientNoise>,
}

impl GradientStats {
    /// Waits for the device; `norm`, f64 \[\], is that of the whole gradient of a global batch of `samples`.
    ///
    /// # Errors
    /// What the device says.
    pub fn fetch(self, state: &TrainState, samples: u64, norm: &Tensor) -> Result<Fetched, Error> {
        let kernels = state.kernels();
        let (mut totals, mut whole) = (Vec::new(), f64::NAN);
        for share in self.pending {
            let fetch = |pending: step::Pending| {
                let (totals, norm) = pending.fetch(kernels, norm)?;
                whole = norm;
                Ok(totals)
            };
            totals.push(share.into_iter().map(fetch).collect::<Result<_, torch::TorchError>>()?);
        }
        let halves = match self.halves.is_empty() {
            true => Vec::new(),
            false => torch::guard(|| kernels.fetch(&Tensor::stack(&self.halves, 0)))?,
        };
        let noise = halves.first_chunk().and_then(|halves| noise::estimate(samples, whole, *halves));
        Ok(Fetched { totals, norm: whole, noise })
    }
}
