//! Gradient of a step over all ranks. An all-reduce follows the forward and backward passes. On steps that measure the
//! gradient noise scale, the global batch is processed in two halves.

use lambert_collective::{Group, Reducer};
use lambert_control::GradientNoise;
use lambert_dataset::random::Key;
use tch::Tensor;

use super::exact::ExactSum;
use super::gradients::{self, BucketedAllReduce};
use super::noise;
use super::phases::{Phase, PhaseClock};
use super::step;
use crate::data::{GlobalBatch, RankBatch};
use crate::error::Error;
use crate::objective::Objective;
use crate::objective::totals::ObjectiveTotals;
use crate::state::TrainState;
use crate::torch;
use crate::worker::control::WorkerPhase;
use crate::worker::session::Session;
use crate::worker::trace::span;

/// Inputs of the gradient computation of a step.
pub struct GradientPass<'a> {
    pub session: &'a Session,
    pub objective: &'a Objective,
    /// Global batch, with the micro-batches of this rank.
    pub batch: &'a GlobalBatch,
    pub dropout: Key,
    /// True if this rank could not read its samples. In that case, no rank updates its weights.
    pub has_no_samples: bool,
}

/// Totals, and gradient norms of the halves.
#[derive(Default)]
pub struct GradientStats {
    /// Totals of the whole batch, or of each half. The inner vector has one entry per canonical shard of this rank, or
    /// a single entry without canonical shards.
    pending: Vec<Vec<step::PendingTotals>>,
    /// Gradient norm of each half, f64 \[\]; empty if the batch was not halved.
    halves: Vec<Tensor>,
}

impl GradientPass<'_> {
    /// Computes the gradient over all ranks and leaves it in `state`. Ends the phases of `clock`. Collective: every rank must
    /// call it.
    ///
    /// # Errors
    /// Out of memory, or a rank failed.
    pub fn gradient(
        &self,
        state: &mut TrainState,
        group: &mut dyn Group,
        reducer: &mut dyn Reducer,
        clock: &mut PhaseClock<'_>,
    ) -> Result<GradientStats, Error> {
        let session = self.session;
        let mut stats = GradientStats::default();
        if !session.config.metrics.measures_noise(state.step) {
            self.reduce_gradient(self.batch.whole(), state, group, reducer, clock, &mut stats)?;
            return Ok(stats);
        }
        let [first, second] = self.batch.halves();
        self.reduce_gradient(first, state, group, reducer, clock, &mut stats)?;
        let first = torch::guard(|| {
            stats.halves.push(state.gradient_norm());
            state.gradients_mut().copy()
        })?;
        self.reduce_gradient(second, state, group, reducer, clock, &mut stats)?;
        torch::guard(|| {
            stats.halves.push(state.gradient_norm());
            *state.gradients_mut() += first;
        })?;
        Ok(stats)
    }

    /// Computes the gradient of a batch, or of half of it, summed over all ranks.
    fn reduce_gradient(
        &self,
        rank_batch: RankBatch<'_>,
        state: &mut TrainState,
        group: &mut dyn Group,
        reducer: &mut dyn Reducer,
        clock: &mut PhaseClock<'_>,
        stats: &mut GradientStats,
    ) -> Result<(), Error> {
        let session = self.session;
        let control = &session.control;
        control.set_phase(WorkerPhase::Step);
        let pending = match session.config.cluster.all_reduce.canonical {
            false => {
                let passes = span!("forward and backward");
                let (pending, all_reduce) = self.bucketed(rank_batch, state, reducer)?;
                // Without overlap, the all-reduce starts only in `finish`. Wait for pending kernels first, so that a
                // rank with a slow GPU is not in the phase of the all-reduce.
                if session.world > 1 && !all_reduce.overlaps(state) {
                    torch::guard(|| session.kernels.wait())?;
                }
                drop(passes);
                clock.end(Phase::ForwardBackward)?;
                control.set_phase(WorkerPhase::AllReduce);
                let _sum = span!("all-reduce");
                all_reduce.finish(state)?;
                pending
            }
            true => {
                let passes = span!("forward and backward");
                let (pending, sum) = self.canonical(rank_batch, state)?;
                drop(passes);
                clock.end(Phase::ForwardBackward)?;
                control.set_phase(WorkerPhase::AllReduce);
                let _sum = span!("all-reduce");
                gradients::all_reduce_exact(group, state, sum)?;
                pending
            }
        };
        clock.end(Phase::Communication)?;
        stats.pending.push(pending);
        Ok(())
    }

    /// Runs the forward and backward passes. With overlap, starts the all-reduce of each bucket as soon
    /// as the gradients of the bucket are final.
    fn bucketed<'r>(
        &self,
        rank_batch: RankBatch<'_>,
        state: &mut TrainState,
        reducer: &'r mut dyn Reducer,
    ) -> Result<(Vec<step::PendingTotals>, BucketedAllReduce<'r>), Error> {
        let session = self.session;
        let others = (session.world > 1).then_some(reducer);
        let bucket = session.config.cluster.all_reduce.bucket_elements(session.nccl.is_some());
        let mut all_reduce = BucketedAllReduce::new(others, bucket, gradients::wants_overlap(session));
        let mut gradients_ready = |state: &TrainState, elements| all_reduce.gradients_ready(state, elements);
        let pending = step::forward_backward(self.objective, state, rank_batch, self.dropout, &mut gradients_ready);
        let pending = pending?;
        self.poison_gradients(state)?;
        Ok((vec![pending], all_reduce))
    }

    /// Runs the passes for one canonical shard (a fixed part of the global batch) at a time, and
    /// accumulates the gradients in an [`ExactSum`].
    fn canonical(
        &self,
        rank_batch: RankBatch<'_>,
        state: &mut TrainState,
    ) -> Result<(Vec<step::PendingTotals>, ExactSum), Error> {
        let mut sum = ExactSum::new(state.gradients_mut().numel());
        let add = |state: &mut TrainState| gradients::accumulate_exact(state, &mut sum);
        let pending = step::per_shard(self.objective, state, rank_batch, self.dropout, add);
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
pub struct GradientResult {
    /// Totals of the whole batch, or of each half. The inner vector has one entry per canonical shard of this rank, or
    /// a single entry without canonical shards.
    pub totals: Vec<Vec<ObjectiveTotals>>,
    /// L2 norm of the gradient over all ranks, before clipping.
    pub norm: f64,
    /// Gradient noise, if it was measured.
    pub noise: Option<GradientNoise>,
}

impl GradientStats {
    /// Waits for the device and reads the results back. `samples` is the size of the global batch, and
    /// `norm`, f64 \[\], is the norm of its gradient.
    ///
    /// # Errors
    /// The device fails.
    pub fn fetch(self, state: &TrainState, samples: u64, norm: &Tensor) -> Result<GradientResult, Error> {
        let kernels = state.kernels();
        let (mut totals, mut whole) = (Vec::new(), f64::NAN);
        for pending in self.pending {
            let fetch = |pending: step::PendingTotals| {
                let (totals, norm) = pending.fetch(kernels, norm)?;
                whole = norm;
                Ok(totals)
            };
            totals.push(pending.into_iter().map(fetch).collect::<Result<_, torch::TorchError>>()?);
        }
        let halves = match self.halves.is_empty() {
            true => Vec::new(),
            false => torch::guard(|| kernels.fetch(&Tensor::stack(&self.halves, 0)))?,
        };
        let noise = halves.first_chunk().and_then(|halves| noise::estimate(samples, whole, *halves));
        Ok(GradientResult { totals, norm: whole, noise })
    }
}
