//! Forward and backward passes over micro-batches. Results of a step stay on the device and are read back once.

use lambert_config::RunConfig;
use lambert_dataset::random::Key;
use lambert_plan::flops;
use tch::{Kind, Tensor};

use crate::data::{GlobalBatch, MicroBatch, RankBatch};
use crate::kernels::Kernels;
use crate::model::Dropout;
use crate::model::input::Input;
use crate::objective::totals::{DetectionCounts, ObjectiveTotals};
use crate::objective::{LossValue, Objective, Pass, PassOutput};
use crate::state::{TrainState, final_elements};
use crate::torch::{self, TorchError};

/// Returns the floating-point operations of a step, with those of the teacher, without padding.
pub fn flops(config: &RunConfig, state: &TrainState, batch: &GlobalBatch) -> f64 {
    let lengths = batch.lengths.iter().map(|length| u64::from(*length));
    let (architecture, teacher) = (state.parameters.architecture(), config.objective.teacher.as_ref());
    let taught = flops::teaching(teacher, architecture, lengths.clone());
    flops::training(architecture, lengths, batch.masked_tokens) + taught
}

/// Number of sums of a loss on the device.
const SUMS: i64 = 5;

/// Totals over micro-batches: losses and correct predictions on the device, target counts and digests in host memory.
pub struct PendingTotals {
    /// For each loss of each pass: loss sum, number of correct predictions, and the three counts of a detection. Then the
    /// digest of the drawn tokens. f64 \[5 x losses + 1\].
    sums: Tensor,
    known: ObjectiveTotals,
}

impl PendingTotals {
    fn new(kernels: &dyn Kernels, objective: &Objective) -> Self {
        let known = objective.no_totals();
        Self { sums: kernels.zeros(&[SUMS * known.losses.len() as i64 + 1], Kind::Double), known }
    }

    /// Adds the losses of a pass. `first` is the index of the first loss of the pass.
    fn add(&mut self, first: usize, pass: &Pass, batch: &MicroBatch, scores: &[Option<LossValue>]) {
        for (loss_index, (loss, scored)) in (first..).zip(pass.losses().zip(scores)) {
            let Some(LossValue { loss: sum, correct, detection, .. }) = scored else { continue };
            self.known.losses[loss_index].targets += loss.targets(batch) as f64;
            let first = SUMS * loss_index as i64;
            let _ = self.sums.narrow(0, first, 1).g_add_(&sum.detach());
            if let Some(correct) = correct {
                let _ = self.sums.narrow(0, first + 1, 1).g_add_(correct);
            }
            if let Some(detection) = detection {
                let _ = self.sums.narrow(0, first + 2, 3).g_add_(detection);
            }
        }
    }

    /// Adds the digest of the tokens that were drawn for the input of a pass.
    fn add_drawn(&mut self, input: &Input) {
        if let Some(digest) = &input.drawn_digest {
            let last = self.sums.size()[0] - 1;
            let _ = self.sums.narrow(0, last, 1).g_add_(digest);
        }
    }

    /// Returns 0 if all losses are finite, otherwise NaN, as f32 \[\].
    fn nonfinite_flag(&self) -> Tensor {
        (self.sums.sum(Kind::Double) * 0.0).to_kind(Kind::Float)
    }

    /// Reads back the totals and `norm`, f64 \[\], in one transfer.
    pub fn fetch(self, kernels: &dyn Kernels, norm: &Tensor) -> Result<(ObjectiveTotals, f64), TorchError> {
        let numbers = torch::guard(|| kernels.fetch(&Tensor::cat(&[self.sums, norm.view([1])], 0)))?;
        let mut totals = self.known;
        for (sums, numbers) in totals.losses.iter_mut().zip(numbers.chunks_exact(SUMS as usize)) {
            (sums.loss, sums.correct) = (numbers[0], numbers[1]);
            sums.detection = DetectionCounts { targets: numbers[2], predictions: numbers[3], both: numbers[4] };
        }
        totals.drawn_digest = numbers[numbers.len() - 2];
        Ok((totals, numbers[numbers.len() - 1]))
    }
}

/// Runs forward and backward passes over this rank's micro-batches of a global batch, or of half of it. Replaces the
/// gradients in `state` with the gradients of the total loss. For the total loss, each loss is divided by its number of
/// targets in the whole global batch and multiplied by its weight. If a loss is not finite, the gradient norm of
/// `state` is not finite either.
///
/// `dropout` is a key derived from the seed and the step. During the backward passes of the last micro-batch,
/// `gradients_ready` receives the number of elements at the start of the gradient buffer that are final.
pub fn forward_backward(
    objective: &Objective,
    state: &mut TrainState,
    rank_batch: RankBatch<'_>,
    dropout: Key,
    gradients_ready: &mut dyn FnMut(&TrainState, usize),
) -> Result<PendingTotals, TorchError> {
    gradients(objective, state, (rank_batch.batch, rank_batch.micro_batches), dropout, gradients_ready)
}

/// Runs the passes of [`forward_backward`] for one canonical shard of this rank at a time. Canonical shards are a fixed
/// partition of the global batch. Each shard has separate totals and separate gradients. After each shard, `take`
/// receives the state with the gradients of that shard.
pub fn per_shard(
    objective: &Objective,
    state: &mut TrainState,
    rank_batch: RankBatch<'_>,
    dropout: Key,
    mut take: impl FnMut(&mut TrainState),
) -> Result<Vec<PendingTotals>, TorchError> {
    let mut compute_shard = |micro_batches: &[MicroBatch]| {
        let pending = gradients(objective, state, (rank_batch.batch, micro_batches), dropout, &mut |_, _| ())?;
        torch::guard(|| take(state))?;
        Ok(pending)
    };
    // A rank without samples contributes one shard with gradients of zero.
    match rank_batch.shard_micro_batches.is_empty() {
        true => std::iter::once(&[][..]).map(&mut compute_shard).collect(),
        false => rank_batch.shards().map(&mut compute_shard).collect(),
    }
}

/// Runs forward and backward passes over the given micro-batches, starting from zero gradients.
fn gradients(
    objective: &Objective,
    state: &mut TrainState,
    (batch, micro_batches): (&GlobalBatch, &[MicroBatch]),
    dropout: Key,
    gradients_ready: &mut dyn FnMut(&TrainState, usize),
) -> Result<PendingTotals, TorchError> {
    let kernels = state.parameters.kernels().clone();
    torch::guard(|| {
        state.clear_gradients();
        let mut pending = PendingTotals::new(&*kernels, objective);
        let mut left = micro_batches.len();
        Input::each(&*kernels, micro_batches, |micro_batch, input| {
            left -= 1;
            pending.known.digest += micro_batch.digest as f64;
            // Number of segments in the earlier passes of the objective. The gradients of these segments are complete.
            let mut before = 0;
            each_pass(objective, &input, dropout, |pass, input, first_loss, is_read| {
                pending.add_drawn(input);
                if pass.is_frozen {
                    return forward(pass, micro_batch, input, is_read).0;
                }
                let weights = pass_weights(pass, batch);
                let loss = |hidden: &Tensor| {
                    let mut scores = pass.score(micro_batch, input, hidden);
                    let output = PassOutput::take(hidden, &mut scores, is_read);
                    (total(&*kernels, &scores, &weights), (scores, output))
                };
                let mut passed = |segments| {
                    if left == 0 {
                        gradients_ready(state, final_elements(state.parameters.specs(), before + segments));
                    }
                };
                let encoder = &pass.encoder;
                let (scores, output) = encoder.backward(input, encoder.dropout(dropout, input), loss, &mut passed);
                before += encoder.segments();
                pending.add(first_loss, pass, micro_batch, &scores);
                output
            });
        });
        state.add_to_flag(&pending.nonfinite_flag());
        pending
    })
}

/// Calls `run(pass, input, first_loss, is_read)` for each pass in order. `first_loss` is the index of its first loss.
/// `is_read` is true if a later pass may read the output that `run` returns. `key` determines drawn tokens.
fn each_pass(
    objective: &Objective,
    input: &Input,
    key: Key,
    mut run: impl FnMut(&Pass, &Input, usize, bool) -> Option<PassOutput>,
) {
    let mut outputs = Vec::new();
    let mut first_loss = 0;
    for (number, pass) in objective.passes().iter().enumerate() {
        let replaced = pass.replaced_input(input, &outputs, key);
        let is_read = number + 1 < objective.passes().len();
        if !is_read {
            // The input of the last pass is complete, so earlier outputs can be freed.
            outputs.clear();
        }
        outputs.extend(run(pass, replaced.as_ref().unwrap_or(input), first_loss, is_read));
        first_loss += pass.losses().count();
    }
}

/// Runs a forward pass without gradients and without dropout.
fn forward(
    pass: &Pass,
    batch: &MicroBatch,
    input: &Input,
    is_read: bool,
) -> (Option<PassOutput>, Vec<Option<LossValue>>) {
    let _without = tch::no_grad_guard();
    let hidden = pass.encoder.forward(input, Dropout::Off);
    let mut scores = pass.score(batch, input, &hidden);
    (PassOutput::take(&hidden, &mut scores, is_read), scores)
}

/// Makes the gradient norm NaN on all ranks after the all-reduce, so that no rank updates its weights.
pub fn poison_gradients(state: &mut TrainState) -> Result<(), TorchError> {
    let kernels = state.parameters.kernels().clone();
    torch::guard(|| state.add_to_flag(&(kernels.zeros(&[], Kind::Float) + f64::NAN)))
}

/// Runs forward passes over the given micro-batches, without dropout. Draws of tokens depend on `key`.
pub fn evaluate(objective: &Objective, micro_batches: &[MicroBatch], key: Key) -> Result<ObjectiveTotals, TorchError> {
    let kernels = objective.encoder().kernels();
    let pending = torch::guard(|| {
        let mut pending = PendingTotals::new(kernels, objective);
        Input::each(kernels, micro_batches, |micro_batch, input| {
            pending.known.digest += micro_batch.digest as f64;
            each_pass(objective, &input, key, |pass, input, first_loss, is_read| {
                pending.add_drawn(input);
                let (output, scores) = forward(pass, micro_batch, input, is_read);
                pending.add(first_loss, pass, micro_batch, &scores);
                output
            });
        });
        pending
    })?;
    let none = torch::guard(|| kernels.zeros(&[], Kind::Double))?;
    Ok(pending.fetch(kernels, &none)?.0)
}

/// Divisor and weight of each loss of a pass.
fn pass_weights(pass: &Pass, batch: &GlobalBatch) -> Vec<(f64, f64)> {
    let of = |loss: &dyn crate::objective::Loss| (loss.global_targets(batch).max(1) as f64, loss.description().weight);
    pass.losses().map(of).collect()
}

/// Contribution of one pass over a micro-batch to the total loss of the global batch, a scalar.
fn total(kernels: &dyn Kernels, scores: &[Option<LossValue>], weights: &[(f64, f64)]) -> Tensor {
    let share = |(scored, (divisor, weight)): (&Option<LossValue>, &(f64, f64))| {
        let share = &scored.as_ref()?.loss / *divisor;
        Some(if *weight == 1.0 { share } else { share * *weight })
    };
    let shares = scores.iter().zip(weights).filter_map(share);
    // `reduce` starts from the first term, so that a single loss is not rounded again.
    shares.reduce(|sum, share| sum + share).unwrap_or_else(|| kernels.zeros(&[], Kind::Float).set_requires_grad(true))
}

#[cfg(test)]
pub(crate) mod tests;
