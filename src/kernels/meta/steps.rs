//! Operations of a training step on the meta device: reads, copies, and their number.

use lambert_config::run::{Attention, Model, Norm, Optimizer as Settings, OptimizerKind, Precision};
use lambert_plan::architecture::{Architecture, Head};
use lambert_plan::batch_partition::{Layout, MicroBatchPlan};

use super::*;
use crate::data::batch::MaskedSample;
use crate::data::{GlobalBatch, MicroBatch};
use crate::masking::MaskedToken;
use crate::model;
use crate::model::tests::architectures::CASES;
use crate::objective::{Loss, Objective, Pass};
use crate::optim;
use crate::state::{Parameters, TrainState};
use crate::train::phases::{Phase, PhaseClock};
use crate::train::step;

unsafe extern "C" {
    fn lambert_start_counting();
    fn lambert_stop_counting(counts: *mut i64);
}

/// Sample of `length` tokens with two masked tokens.
fn sample(length: u32) -> MaskedSample {
    let masked_tokens = vec![MaskedToken { position: 1, label: 3 }, MaskedToken { position: 2, label: 4 }];
    MaskedSample {
        ids: (5..5 + length).collect(),
        segment_b_start: 3,
        pair_label: Some(1),
        masked_tokens,
        loss_scale: 1.0,
    }
}

/// A global batch of two micro-batches. If they are padded, the second one has padding.
fn batch(layout: Layout) -> GlobalBatch {
    let micro_batches = match layout {
        Layout::Padded => vec![
            MicroBatch::padded(&[0, 1], 12, &[sample(12), sample(12)]),
            MicroBatch::padded(&[2, 3], 10, &[sample(10), sample(8)]),
        ],
        Layout::Unpadded => {
            let plan =
                |samples: &[usize], width, tokens| MicroBatchPlan { samples: samples.to_vec(), width, tokens, layout };
            vec![
                MicroBatch::new(&plan(&[0, 1], 12, 24), 0, &[sample(12), sample(12)]),
                MicroBatch::new(&plan(&[2, 3], 10, 20), 0, &[sample(10), sample(8)]),
            ]
        }
    };
    GlobalBatch {
        lengths: vec![12, 12, 10, 8],
        masked_tokens: 8,
        sample_range: 0..4,
        micro_batches,
        ..GlobalBatch::default()
    }
}

/// Calls `work` and returns the numbers of its scalar reads, of its copies between devices, of its copies of attention masks, and
/// of all its operations.
fn observed(work: impl FnOnce()) -> [i64; 4] {
    let mut counts = [0; 4];
    // SAFETY: starts thread-local counters.
    unsafe { lambert_start_counting() };
    work();
    // SAFETY: writes the four counters.
    unsafe { lambert_stop_counting(counts.as_mut_ptr()) };
    counts
}

/// Counts the fetches, the other reads, and the copies between devices of a step. No layer copies the attention mask.
fn counts(
    device: &MetaDevice,
    state: &mut TrainState,
    objective: &Objective,
    kind: OptimizerKind,
    layout: Layout,
) -> (usize, i64, i64) {
    let (batch, settings) = (batch(layout), Settings { kind, ..Settings::default() });
    let [reads, copies, mask_copies, _] = observed(|| {
        let kernels = Arc::clone(state.parameters.kernels());
        let mut clock = PhaseClock::start(&*kernels).unwrap();
        let computed = step::forward_backward(objective, state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
        clock.end(Phase::ForwardBackward).unwrap();
        let norm = optim::update(state, &settings, 1e-3, &mut optim::SingleRank).unwrap().norm;
        clock.end(Phase::Optimizer).unwrap();
        computed.fetch(state.kernels(), &norm).unwrap();
        clock.seconds().unwrap();
    });
    assert_eq!(mask_copies, 0, "a layer copies the attention mask");
    (device.fetched.swap(0, Ordering::Relaxed), reads, copies)
}

/// Counts as in [`counts`], for a step of a new BERT model.
fn bert_counts(
    device: &MetaDevice,
    kernels: Arc<dyn Kernels>,
    model: &Model,
    kind: OptimizerKind,
    recompute: bool,
) -> (usize, i64, i64) {
    let mut state = TrainState::new(Parameters::zeros(kernels, Architecture::new(model, 2, 50)));
    state.parameters.keep_bf16_copy(model::compute_dtype(model));
    let objective = step::tests::objective(&state, model).recomputing(recompute);
    counts(device, &mut state, &objective, kind, Layout::Padded)
}

/// Number of copies that upload the micro-batches: one for each micro-batch.
const BATCH_UPLOADS: i64 = 2;
/// Number of copies that `zeros` makes during a step, for the initial value of the loss sums.
const LOSS_ZEROS: i64 = 1;
/// Number of copies that a CUDA update makes in the first step. Three copies upload the update constants and the two
/// tensors of the chunk table. Two copies are for initial values of the norm. LAMB makes two more copies, for the
/// initial values of its sums and of its step sizes.
const UPDATE_COPIES: i64 = 3 + 2;
const LAMB_UPDATE_COPIES: i64 = UPDATE_COPIES + 2;

#[test]
fn step_synchronizes_once_and_makes_only_required_copies() {
    let shape = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    for norm in [Norm::Post, Norm::Pre] {
        for (dropout, pad_vocabulary_to, precision) in
            [(0.1, 1, Precision::Fp32), (0.0, 8, Precision::Fp32), (0.1, 8, Precision::Bf16)]
        {
            for (kind, recompute) in [(OptimizerKind::Lamb, false), (OptimizerKind::Adamw, true)] {
                let model = Model { norm, dropout, pad_vocabulary_to, precision, ..shape.clone() };
                let device = Arc::new(MetaDevice::default());
                let meta = Arc::new(MetaReference(device.clone()));
                let seen = bert_counts(&device, meta, &model, kind, recompute);
                assert_eq!(seen, (1, 0, BATCH_UPLOADS + LOSS_ZEROS), "{norm:?}, {dropout}, {kind:?}, {precision:?}");
                let cuda = Arc::new(Cuda::new(device.clone()));
                let seen = bert_counts(&device, cuda, &model, kind, recompute);
                let update_copies = if kind == OptimizerKind::Lamb { LAMB_UPDATE_COPIES } else { UPDATE_COPIES };
                assert_eq!(
                    seen,
                    (1, 0, BATCH_UPLOADS + LOSS_ZEROS + update_copies),
                    "a device: {norm:?}, {dropout}, {kind:?}, {precision:?}"
                );
            }
        }
    }
}

#[test]
fn step_of_every_architecture_synchronizes_once() {
    let model = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    for case in CASES {
        for recompute in [false, true] {
            let device = Arc::new(MetaDevice::default());
            let kernels: [Arc<dyn Kernels>; 2] =
                [Arc::new(MetaReference(device.clone())), Arc::new(Cuda::new(device.clone()))];
            for kernels in kernels {
                let mut state = case.state(kernels, &model);
                let objective = case.objective(&state.parameters, &model).recomputing(recompute);
                for kind in [OptimizerKind::Lamb, OptimizerKind::Muon] {
                    let (fetched, reads, _) = counts(&device, &mut state, &objective, kind, Layout::Padded);
                    assert_eq!((fetched, reads), (1, 0), "{} {recompute} {kind:?}", case.name);
                }
            }
        }
    }
}

/// Flash attention is checked for its dtype and its shapes.
#[test]
fn step_of_unpadded_micro_batches_synchronizes_once() {
    let model = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    let model = Model { precision: Precision::Bf16, attention: Attention::Fused, ..model };
    for case in CASES.iter().take(6) {
        for recompute in [false, true] {
            let device = Arc::new(MetaDevice::default());
            let mut state = case.state(Arc::new(Cuda::new(device.clone())), &model);
            state.parameters.keep_bf16_copy(Kind::BFloat16);
            let objective = case.objective(&state.parameters, &model).recomputing(recompute);
            let seen = counts(&device, &mut state, &objective, OptimizerKind::Lamb, Layout::Unpadded);
            assert_eq!(seen, (1, 0, BATCH_UPLOADS + LOSS_ZEROS + LAMB_UPDATE_COPIES), "{} {recompute}", case.name);
            step::evaluate(&objective, &batch(Layout::Unpadded).micro_batches, Key::new(1)).unwrap();
            assert_eq!(device.fetched.swap(0, Ordering::Relaxed), 1, "evaluation, {}", case.name);
        }
    }
}

/// One kernel computes each loss over the vocabulary, also in an evaluation, and one its gradient.
#[test]
fn kernels_compute_the_losses_over_the_vocabulary() {
    let shape =
        Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, pad_vocabulary_to: 8, ..Model::default() };
    for case in CASES {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let model = Model { precision, ..shape.clone() };
            let device = Arc::new(MetaDevice::default());
            let mut state = case.state(Arc::new(Cuda::new(device.clone())), &model);
            let objective = case.objective(&state.parameters, &model);
            let mut batch = batch(Layout::Padded);
            batch.micro_batches = batch.micro_batches.into_iter().map(MicroBatch::with_span_targets).collect();
            let predicts_tokens = |head| matches!(head, Head::MaskedLanguage | Head::SpanBoundary);
            let losses = objective.passes().iter().flat_map(Pass::losses).map(Loss::description);
            let losses = losses.filter(|loss| predicts_tokens(loss.head) && !loss.needs_teacher()).count();
            let launched = |suffix: &str| {
                ["cross_entropy", "cross_entropy_backward"].map(|kernel| device.launched(&format!("{kernel}_{suffix}")))
            };
            // A table in f32 makes the hidden states f32.
            let is_bf16 = precision == Precision::Bf16 && case.name != "a table in every layer";
            let [used, other] = if is_bf16 { ["bf16", "f32"] } else { ["f32", "bf16"] };
            step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
            assert!(
                losses > 0 && launched(used) == [2 * losses; 2],
                "{} {precision:?}: {:?}",
                case.name,
                launched(used)
            );
            step::evaluate(&objective, &batch.micro_batches, Key::new(1)).unwrap();
            assert_eq!(launched(used), [4 * losses, 2 * losses], "evaluation, {} {precision:?}", case.name);
            assert_eq!(launched(other), [0; 2], "{} {precision:?}", case.name);
        }
    }
}

/// Micro-batch of `count` samples of 10 and 8 tokens in turn.
fn micro_batch(layout: Layout, count: usize) -> MicroBatch {
    let lengths: Vec<u32> = (0..count as u32).map(|number| 10 - 2 * (number % 2)).collect();
    let samples: Vec<usize> = (0..count).collect();
    let tokens = match layout {
        Layout::Padded => 10 * count,
        Layout::Unpadded => lengths.iter().map(|length| *length as usize).sum(),
    };
    let masked: Vec<MaskedSample> = lengths.iter().map(|length| sample(*length)).collect();
    MicroBatch::new(&MicroBatchPlan { samples, width: 10, tokens, layout }, 0, &masked)
}

/// Number of libtorch operations in the forward and backward passes of BERT with `layers` layers, bf16, for a micro-batch of `count`
/// samples.
fn operations(layout: Layout, layers: usize, count: usize) -> i64 {
    let model = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    let model = Model { precision: Precision::Bf16, attention: Attention::Fused, ..model };
    let kernels = Arc::new(Cuda::new(Arc::new(MetaDevice::default())));
    let mut state = TrainState::new(Parameters::zeros(kernels, Architecture::new(&model, layers, 50)));
    state.parameters.keep_bf16_copy(Kind::BFloat16);
    let objective = step::tests::objective(&state, &model);
    let batch = GlobalBatch {
        lengths: vec![10; count],
        masked_tokens: 2 * count as u64,
        sample_range: 0..count as u64,
        micro_batches: vec![micro_batch(layout, count)],
        ..GlobalBatch::default()
    };
    let pass =
        || drop(step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap());
    observed(pass)[3]
}

/// A GPU waits for the CPU if a step has too many operations. Their number depends on the layers, not on the samples.
#[test]
fn number_of_operations_does_not_depend_on_samples() {
    for layout in [Layout::Padded, Layout::Unpadded] {
        let [two, three, four] = [2, 3, 4].map(|layers| operations(layout, layers, 4));
        assert_eq!(four - three, three - two, "{layout:?}");
        assert_eq!(operations(layout, 3, 24), three, "{layout:?}: more samples");
        eprintln!(
            "{layout:?}: {} libtorch operations in a layer, {} in all others",
            three - two,
            three - 3 * (three - two)
        );
    }
    let of_layer = |layout| operations(layout, 3, 4) - operations(layout, 2, 4);
    assert!(of_layer(Layout::Unpadded) <= of_layer(Layout::Padded), "unpadded micro-batches need no more operations");
}
