use std::sync::Arc;

use super::*;
use crate::data::batch::MaskedSample;
use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host};
use crate::masking::MaskedToken;
use crate::state::{Buffer, Parameters};
use lambert_config::run::{self, Attention, Model, Norm, Precision};
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::{Layout, MicroBatchPlan};

fn sample(length: u32) -> MaskedSample {
    let masked_tokens = [1, 2].map(|position| MaskedToken { position, label: length + u32::from(position) }).into();
    let ids = (0..length).map(|place| (place * 7 + length) % 50).collect();
    MaskedSample { ids, segment_b_start: 3, pair_label: Some(1), masked_tokens, loss_scale: 1.0 }
}

/// Five samples of 5 to 13 tokens, split into the given micro-batches.
pub(crate) fn batch(cuts: &[&[usize]]) -> GlobalBatch {
    batch_with(cuts, Layout::Padded)
}

/// [`batch`] in the given layout. Unpadded micro-batches have a tail of 20 tokens.
pub(crate) fn batch_with(cuts: &[&[usize]], layout: Layout) -> GlobalBatch {
    let length = |number: usize| 5 + 2 * number;
    let micro = |cut: &&[usize]| {
        let samples: Vec<_> = cut.iter().map(|number| sample(length(*number) as u32)).collect();
        let width = cut.iter().map(|number| length(*number)).max().unwrap();
        let tokens = match layout {
            Layout::Padded => cut.len() * width,
            Layout::Unpadded => 20 + cut.iter().map(|number| length(*number)).sum::<usize>(),
        };
        MicroBatch::new(&MicroBatchPlan { samples: cut.to_vec(), width, tokens, layout }, 0, &samples)
            .with_span_targets()
    };
    let lengths = (0..5).map(|number| length(number) as u16).collect();
    GlobalBatch {
        datasets: Vec::new(),
        sample_range: 0..5,
        lengths,
        padding: 0,
        imbalance: 1.0,
        masked_tokens: 10,
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

fn gradients_on(kernels: Arc<dyn Kernels>, model: &Model, cuts: &[&[usize]], step: u64, recompute: bool) -> Vec<f32> {
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
        forward_backward(&objective, &mut state, batch(&[&[3, 0], &[1], &[4, 2]]).whole(), Key::new(1), &mut report)
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
            batch.micro_batches = vec![MicroBatch::padded(&[0], 5, &[lone])];
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
