//! Gradient of a step over all ranks: forward and backward passes, then an all-reduce. Where the gradient noise scale is measured,
//! the global batch is processed in two halves.

use lambert_collective::{Group, Reducer};
use lambert_control::GradientNoise;
use lambert_dataset::random::Key;
use tch::Tensor;

use super::exact::ExactSum;
use super::gradients::{self, BucketedAllReduce};
use super::noise;
use super::step;
use crate::data::{GlobalBatch, RankBatch};
use crate::error::Error;
use crate::objective::Objective;
use crate::objective::totals::ObjectiveTotals;
use crate::state::TrainState;
use crate::torch;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;

/// Inputs of the gradient computation of a step.
pub struct GradientPass<'a> {
    pub session: &'a Session,
    pub objective: &'a Objective,
    /// This rank's shard of the global batch.
    pub batch: &'a GlobalBatch,
    pub dropout: Key,
    /// True if this rank could not read its samples: then no rank may update.
    pub has_no_samples: bool,
}

/// Totals, half norms and times of a gradient computation.
#[derive(Default)]
pub struct GradientStats {
    /// Totals of the whole batch or of each half, by canonical shard of this rank.
    pending: Vec<Vec<step::PendingTotals>>,
    /// Gradient norm of each half, f64 \[\]; empty if the batch was not halved.
    halves: Vec<Tensor>,
    /// Time of the forward and backward passes, seconds.
    pub seconds: f64,
    /// Exposed communication time, seconds.
    pub communicate: f64,
}

impl GradientPass<'_> {
    /// Computes the gradient over all ranks, in `state`. Collective: every rank must call it.
    ///
    /// # Errors
    /// Out of memory, or a rank failed.
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
                // Without overlap the all-reduce starts now: wait, so that its time does not include pending kernels.
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
                gradients::all_reduce_exact(group, state, sum)?;
                pending
            }
        };
        passed.communicate += watch.lap();
        passed.pending.push(pending);
        Ok(())
    }

    /// Runs the passes and starts the all-reduce of the buckets whose gradients are final.
    fn in_buckets<'r>(
        &self,
        share: RankBatch<'_>,
        state: &mut TrainState,
        reducer: &'r mut dyn Reducer,
    ) -> Result<(Vec<step::PendingTotals>, BucketedAllReduce<'r>), Error> {
        let session = self.session;
        let others = (session.world > 1).then_some(reducer);
        let bucket = session.config.cluster.all_reduce.bucket_elements();
        let mut exchange = BucketedAllReduce::new(others, bucket, gradients::overlaps(session));
        let mut gradients_ready = |state: &TrainState, elements| exchange.gradients_ready(state, elements);
        let pending = step::forward_backward(self.objective, state, share, self.dropout, &mut gradients_ready);
        let pending = pending?;
        self.poison_gradients(state)?;
        Ok((vec![pending], exchange))
    }

    /// Runs the passes shard by shard and accumulates the gradients in an [`ExactSum`].
    fn exactly(
        &self,
        share: RankBatch<'_>,
        state: &mut TrainState,
    ) -> Result<(Vec<step::PendingTotals>, ExactSum), Error> {
        let mut sum = ExactSum::new(state.gradients_mut().numel());
        let add = |state: &mut TrainState| gradients::accumulate_exact(state, &mut sum);
        let pending = step::per_shard(self.objective, state, share, self.dropout, add);
        let pending = pending?;
        self.poison_gradients(state)?;
        Ok((pending, sum))
    }

    fn poison_gradients(&self, state: &mut TrainState) -> Result<(), Error> {
        if self.has_no_samples {
            step::poison_gradients(state)?;
        }
        Ok(())
    }
}

/// Results of a gradient computation, read back from the device.
pub struct Fetched {
    /// Totals of the whole batch or of each half, by canonical shard of this rank.
    pub totals: Vec<Vec<ObjectiveTotals>>,
    /// L2 norm of the gradient over all ranks, before clipping.
    pub norm: f64,
    /// Gradient noise, if it was measured.
    pub noise: Option<GradientNoise>,
}

impl GradientStats {
    /// Waits for the device and reads the results back. `norm`, f64 \[\], is the gradient norm of a global batch of `samples`.
    ///
    /// # Errors
    /// The device fails.
    pub fn fetch(self, state: &TrainState, samples: u64, norm: &Tensor) -> Result<Fetched, Error> {
        let kernels = state.kernels();
        let (mut totals, mut whole) = (Vec::new(), f64::NAN);
        for share in self.pending {
            let fetch = |pending: step::PendingTotals| {
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
