//! Forward and backward passes over micro-batches. Results of a step stay on the device and are read back once.

use lambert_dataset::random::Key;
use tch::{Kind, Tensor};

use crate::data::{GlobalBatch, MicroBatch, RankBatch};
use crate::kernels::Kernels;
use crate::model::Dropout;
use crate::model::input::Input;
use crate::objective::totals::ObjectiveTotals;
use crate::objective::{LossValue, Objective, Pass, PassOutput};
use crate::state::{TrainState, final_elements};
use crate::torch::{self, TorchError};

/// Totals over micro-batches: losses and correct predictions on the device, target counts and digests in host memory.
pub struct PendingTotals {
    /// Loss sum and number of correct predictions of each loss of each pass, f64 \[2 x losses\].
    sums: Tensor,
    known: ObjectiveTotals,
}

impl PendingTotals {
    fn new(kernels: &dyn Kernels, objective: &Objective) -> Self {
        let known = objective.no_totals();
        Self { sums: kernels.zeros(&[2 * known.losses.len() as i64], Kind::Double), known }
    }

    /// Adds the losses of a pass. `first` is the index of the first loss of the pass.
    fn add(&mut self, first: usize, pass: &Pass, batch: &MicroBatch, scores: &[Option<LossValue>]) {
        for (place, (loss, scored)) in (first..).zip(pass.losses().zip(scores)) {
            let Some(LossValue { loss: sum, correct, .. }) = scored else { continue };
            self.known.losses[place].targets += loss.targets(batch) as f64;
            let _ = self.sums.narrow(0, 2 * place as i64, 1).g_add_(&sum.detach());
            if let Some(correct) = correct {
                let _ = self.sums.narrow(0, 2 * place as i64 + 1, 1).g_add_(correct);
            }
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
        for (sums, numbers) in totals.losses.iter_mut().zip(numbers.chunks_exact(2)) {
            (sums.loss, sums.correct) = (numbers[0], numbers[1]);
        }
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
    share: RankBatch<'_>,
    dropout: Key,
    gradients_ready: &mut dyn FnMut(&TrainState, usize),
) -> Result<PendingTotals, TorchError> {
    gradients(objective, state, (share.batch, share.micro_batches), dropout, gradients_ready)
}

/// Runs the passes of [`forward_backward`] for one canonical shard of this rank at a time. Canonical shards are a fixed
/// partition of the global batch. Each shard has separate totals and separate gradients. After each shard, `take`
/// receives the state with the gradients of that shard.
pub fn per_shard(
    objective: &Objective,
    state: &mut TrainState,
    share: RankBatch<'_>,
    dropout: Key,
    mut take: impl FnMut(&mut TrainState),
) -> Result<Vec<PendingTotals>, TorchError> {
    let mut compute_shard = |micro_batches: &[MicroBatch]| {
        let pending = gradients(objective, state, (share.batch, micro_batches), dropout, &mut |_, _| ())?;
        torch::guard(|| take(state))?;
        Ok(pending)
    };
    // A rank without samples contributes one shard with gradients of zero.
    match share.shard_micro_batches.is_empty() {
        true => std::iter::once(&[][..]).map(&mut compute_shard).collect(),
        false => share.shards().map(&mut compute_shard).collect(),
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
            each_pass(objective, &input, |pass, input, first_loss, is_read| {
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
        state.add_to_tail(&pending.nonfinite_flag());
        pending
    })
}

/// Calls `run` for each pass. The arguments are the pass, its input, the index of its first loss, and true if a later
/// pass may read its output. `run` returns the output of the pass.
fn each_pass(
    objective: &Objective,
    input: &Input,
    mut run: impl FnMut(&Pass, &Input, usize, bool) -> Option<PassOutput>,
) {
    let mut outputs = Vec::new();
    let mut first_loss = 0;
    for (number, pass) in objective.passes().iter().enumerate() {
        let replaced = pass.replaced_input(input, &outputs);
        let is_read = number + 1 < objective.passes().len();
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
    torch::guard(|| state.add_to_tail(&(kernels.zeros(&[], Kind::Float) + f64::NAN)))
}

/// Runs forward passes over the given micro-batches, without dropout.
pub fn evaluate(objective: &Objective, micro_batches: &[MicroBatch]) -> Result<ObjectiveTotals, TorchError> {
    let kernels = objective.encoder().kernels();
    let pending = torch::guard(|| {
        let mut pending = PendingTotals::new(kernels, objective);
        Input::each(kernels, micro_batches, |micro_batch, input| {
            pending.known.digest += micro_batch.digest as f64;
            each_pass(objective, &input, |pass, input, first_loss, is_read| {
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
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::batch::MaskedSample;
    use crate::kernels::cuda::Emulator;
    use crate::kernels::{Cuda, Host};
    use crate::masking::MaskedToken;
    use crate::state::{Buffer, Parameters};
    use lambert_config::run::{self, Attention, Model, Norm, Precision};
    use lambert_plan::architecture::Architecture;

    fn sample(length: u32) -> MaskedSample {
        let masked_tokens = vec![MaskedToken { position: 1, label: length }];
        let ids = (0..length).map(|place| (place * 7 + length) % 50).collect();
        MaskedSample { ids, segment_b_start: 3, pair_label: Some(1), masked_tokens, loss_scale: 1.0 }
    }

    /// Five samples of 5 to 13 tokens, split into the given micro-batches.
    pub(crate) fn batch(cuts: &[&[usize]]) -> GlobalBatch {
        let length = |number: usize| 5 + 2 * number;
        let micro = |cut: &&[usize]| {
            let samples: Vec<_> = cut.iter().map(|number| sample(length(*number) as u32)).collect();
            MicroBatch::new(cut, cut.iter().map(|number| length(*number)).max().unwrap(), 0, &samples)
        };
        let lengths = (0..5).map(|number| length(number) as u16).collect();
        GlobalBatch {
            epoch: 0,
            sample_range: 0..5,
            lengths,
            padding: 0,
            imbalance: 1.0,
            masked_tokens: 5,
            micro_batches: cuts.iter().map(micro).collect(),
            shard_micro_batches: vec![cuts.len()],
        }
    }

    pub(crate) fn model(norm: Norm) -> Model {
        Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, dropout: 0.3, norm, ..Model::default() }
    }

    /// MLM and sentence-pair losses of the network of `state`.
    pub(crate) fn objective(state: &TrainState, model: &Model) -> Objective {
        Objective::new(&state.parameters, model, &run::Objective::default())
    }

    fn gradients(cuts: &[&[usize]], step: u64, norm: Norm, recompute: bool) -> Vec<f32> {
        gradients_on(Arc::new(Host), &model(norm), cuts, step, recompute)
    }

    fn gradients_on(
        kernels: Arc<dyn Kernels>,
        model: &Model,
        cuts: &[&[usize]],
        step: u64,
        recompute: bool,
    ) -> Vec<f32> {
        let parameters = Parameters::initialize(kernels, Architecture::new(model, 2, 50), 1, 0.2);
        let mut state = TrainState::new(parameters);
        state.parameters.keep_bf16_copy(crate::model::compute_dtype(model));
        let objective = objective(&state, model).recomputing(recompute);
        forward_backward(&objective, &mut state, batch(cuts).whole(), Key::new(step), &mut |_, _| ()).unwrap();
        state.read(Buffer::Gradients, 0..state.elements())
    }

    /// |a - b| / |a|.
    fn distance(a: &[f32], b: &[f32]) -> f64 {
        let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
    }

    const WHOLE: &[&[usize]] = &[&[4, 3, 2, 1, 0]];

    #[test]
    fn gradients_with_dropout_do_not_depend_on_the_micro_batches() {
        let whole = gradients(WHOLE, 1, Norm::Post, false);
        let cut = gradients(&[&[3, 0], &[1], &[4, 2]], 1, Norm::Post, false);
        assert!(distance(&whole, &cut) < 1e-5, "{}", distance(&whole, &cut));
        let next = gradients(WHOLE, 2, Norm::Post, false);
        assert!(distance(&whole, &next) > 0.1, "another step, the same dropout");
    }

    #[test]
    fn recomputed_activations_give_the_same_gradients() {
        for norm in [Norm::Post, Norm::Pre] {
            let (kept, again) = (gradients(WHOLE, 1, norm, false), gradients(WHOLE, 1, norm, true));
            assert!(distance(&kept, &again) < 1e-6, "{norm:?}: {}", distance(&kept, &again));
        }
    }

    #[test]
    fn gradients_reported_as_ready_are_final() {
        let backends: [fn() -> Arc<dyn Kernels>; 2] =
            [|| Arc::new(Host), || Arc::new(Cuda::new(Arc::new(Emulator::default())))];
        for (kernels, norm, tied_decoder, recompute, precision) in [
            (backends[0], Norm::Post, true, false, Precision::Fp32),
            (backends[0], Norm::Post, true, true, Precision::Fp32),
            (backends[0], Norm::Pre, false, false, Precision::Fp32),
            (backends[0], Norm::Pre, true, true, Precision::Bf16),
            (backends[1], Norm::Post, true, false, Precision::Bf16),
        ] {
            let model = Model { tied_decoder, precision, ..model(norm) };
            let parameters = Parameters::initialize(kernels(), Architecture::new(&model, 3, 50), 1, 0.2);
            let mut state = TrainState::new(parameters);
            state.parameters.keep_bf16_copy(crate::model::compute_dtype(&model));
            let objective = objective(&state, &model).recomputing(recompute);
            let mut ready = Vec::new();
            let mut report = |state: &TrainState, elements| ready.push(state.read(Buffer::Gradients, 0..elements));
            forward_backward(
                &objective,
                &mut state,
                batch(&[&[3, 0], &[1], &[4, 2]]).whole(),
                Key::new(1),
                &mut report,
            )
            .unwrap();
            let gradients = state.read(Buffer::Gradients, 0..state.elements());
            // Heads, three layers, embeddings.
            assert_eq!(ready.len(), 5);
            assert!(
                ready.windows(2).all(|pair| pair[0].len() < pair[1].len()),
                "each prefix is longer than the previous one"
            );
            assert_eq!(ready.last().map(Vec::len), Some(state.elements()));
            for early in ready {
                assert_eq!(early, gradients[..early.len()], "{norm:?} {tied_decoder} {recompute} {precision:?}");
            }
        }
    }

    #[test]
    fn frozen_parameters_have_zero_gradients() {
        for (recompute, has_targets) in [(false, true), (true, true), (false, false), (true, false)] {
            let model = model(Norm::Post);
            let parameters = Parameters::initialize(Arc::new(Host), Architecture::new(&model, 3, 50), 1, 0.2);
            let mut state = TrainState::new(parameters);
            let is_old = |spec: &crate::state::ParamSpec| spec.id.layer.is_none_or(|layer| layer < 2);
            state.parameters.freeze(is_old);
            let objective = objective(&state, &model).recomputing(recompute);
            let mut batch = batch(WHOLE);
            if !has_targets {
                let lone = MaskedSample { pair_label: None, masked_tokens: Vec::new(), ..sample(5) };
                batch.micro_batches = vec![MicroBatch::new(&[0], 5, 0, &[lone])];
            }
            let mut ready = 0;
            forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, elements| ready = elements)
                .unwrap();
            assert_eq!(ready, state.elements());
            for spec in state.parameters.specs() {
                let moved = state.read(Buffer::Gradients, spec.range()).iter().any(|gradient| *gradient != 0.0);
                assert!(!moved || has_targets && !is_old(spec), "{}", spec.name);
                assert!(moved || !has_targets || is_old(spec) || spec.name.ends_with("key.bias"), "{}", spec.name);
            }
        }
    }

    #[test]
    fn gradients_on_an_emulated_gpu_match_the_host() {
        let gpu = || Arc::new(Cuda::new(Arc::new(Emulator::default())));
        for (norm, precision, bound) in [
            (Norm::Post, Precision::Fp32, 1e-6),
            (Norm::Pre, Precision::Fp32, 1e-6),
            // The GPU kernel with the fused residual addition rounds once, not twice.
            (Norm::Post, Precision::Bf16, 2e-2),
        ] {
            let model = Model { attention: Attention::Keyed, precision, ..model(norm) };
            let host = gradients_on(Arc::new(Host), &model, WHOLE, 1, false);
            for recompute in [false, true] {
                let difference = distance(&host, &gradients_on(gpu(), &model, WHOLE, 1, recompute));
                assert!(difference < bound, "{norm:?} {precision:?} {recompute}: {difference:e}");
            }
        }
    }

    #[test]
    fn fused_attention_dropout_depends_on_step_and_micro_batch() {
        let model = Model { attention: Attention::Fused, ..model(Norm::Post) };
        let of = |cuts: &[&[usize]], step, recompute| gradients_on(Arc::new(Host), &model, cuts, step, recompute);
        let once = of(WHOLE, 1, false);
        assert_eq!(of(WHOLE, 1, false), once, "the same step has the same dropout");
        assert!(distance(&once, &of(WHOLE, 1, true)) < 1e-6, "so does recomputation");
        assert!(distance(&once, &of(WHOLE, 2, false)) > 0.1, "another step");
        assert!(distance(&once, &of(&[&[3, 0], &[1], &[4, 2]], 1, false)) > 0.01, "other micro-batches");
        let without = Model { attention_dropout: Some(0.0), ..model.clone() };
        let keyed = Model { attention: Attention::Keyed, ..without.clone() };
        let of = |model: &Model| gradients_on(Arc::new(Host), model, WHOLE, 1, false);
        assert_eq!(of(&without), of(&keyed), "without attention dropout both give the same");
    }
}
