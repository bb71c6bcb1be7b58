//! Tests of a training step on the meta device of libtorch, whose tensors have shapes but no data. A hidden read of
//! a value is an error, and so is a shape that depends on data. The tests count the reads and the copies to the
//! device. The tests run with the reference operations and with the CUDA operations. For CUDA, a check of the
//! arguments replaces each hand-written kernel.

mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lambert_config::run::{Attention, Model, Norm, Optimizer as Settings, OptimizerKind, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::{Layout, MicroBatchPlan};

use super::cuda::launch::{KernelArguments, KernelDevice, THREADS};
use super::*;
use crate::data::batch::MaskedSample;
use crate::data::{GlobalBatch, MicroBatch};
use crate::masking::MaskedToken;
use crate::model;
use crate::model::tests::architectures::CASES;
use crate::objective::Objective;
use crate::optim;
use crate::state::{Parameters, TrainState};
use crate::torch;
use crate::train::step;

unsafe extern "C" {
    fn lambert_to_meta(host: *const torch_sys::C_tensor) -> *mut torch_sys::C_tensor;
    fn lambert_start_counting();
    fn lambert_stop_counting(reads: *mut i64, copies: *mut i64);
}

/// Runs operations on the meta device and checks kernel launches.
#[derive(Default)]
struct MetaDevice {
    /// Number of [`Kernels::fetch`] calls.
    fetched: AtomicUsize,
}

fn to_meta(host: &Tensor) -> Tensor {
    // SAFETY: the function takes a live at::Tensor and returns a new tensor that nothing else owns.
    unsafe {
        let meta = lambert_to_meta(host.as_ptr());
        assert!(!meta.is_null());
        Tensor::from_ptr(meta)
    }
}

impl KernelDevice for MetaDevice {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        // Expands one element on the device, so that only that element is copied.
        to_meta(&Host.zeros(&[], kind)).expand(shape, false).zeros_like()
    }

    fn to_device(&self, host: Tensor) -> Tensor {
        to_meta(&host)
    }

    fn start_snapshot(&self, _: Vec<TensorCopy>, _: HostBuffer) -> Box<dyn PendingSnapshot> {
        unreachable!("no snapshot in a step")
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        assert_eq!(numbers.kind(), Kind::Double);
        vec![1.0; numbers.size()[0] as usize]
    }

    fn seed(&self, _: u64) {}

    fn has_unpadded_attention(&self) -> bool {
        true
    }

    /// Checks the sizes of the tensors that a kernel reads and writes, in bytes.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut KernelArguments) -> Result<(), String> {
        let sizes = |indices: &[usize]| indices.iter().map(|index| arguments.size(*index)).collect::<Vec<_>>();
        let number = |index: usize| arguments.number(index);
        let fits = match kernel {
            "dropout_f32" | "dropout_bf16" => {
                let element = if kernel == "dropout_f32" { 4 } else { 2 };
                let (lines, heads, width, length) = (number(8), number(9), number(10), number(11));
                let (added, places) = (arguments.size(2), arguments.size(4));
                let all = element * lines * length;
                let samples = if places > 0 { lines } else { lines / heads / width };
                sizes(&[0, 1, 3]) == [all, all, 8 * samples]
                    && (added == 0 || added == all)
                    && (places == 0 || places == 8 * lines)
                    && blocks == lines.div_ceil(THREADS / 32)
            }
            "residual_norm_f32" | "residual_norm_bf16" => {
                let (lines, width) = (number(13), number(15));
                let all = if kernel == "residual_norm_f32" { 4 } else { 2 } * lines * width;
                sizes(&[0, 1, 2, 3, 4, 5, 6]) == [all, all, 8 * lines, all, all, 4 * width, 4 * width]
                    && blocks == lines.div_ceil(THREADS / 32)
            }
            "residual_norm_backward_f32" | "residual_norm_backward_bf16" => {
                let (lines, width) = (number(12), number(14));
                let all = if kernel == "residual_norm_backward_f32" { 4 } else { 2 } * lines * width;
                sizes(&[1, 2, 3, 4, 5, 6]) == [all, 12 * blocks * width, all, all, 8 * lines, 4 * width]
                    && [0, all].contains(&arguments.size(0))
                    && blocks == number(15)
            }
            "rotate_f32" | "rotate_bf16" => {
                let (tokens, angles) = (number(4), 16 * number(5) * number(7));
                let all = if kernel == "rotate_f32" { 4 } else { 2 } * tokens * 24 * number(6) * number(7);
                sizes(&[0, 1, 2, 3]) == [all, all, angles, angles] && blocks == tokens.div_ceil(8)
            }
            "relative_softmax_f32" | "relative_softmax_bf16" => {
                let (batch, heads, length) = (number(11), number(12), number(13));
                let row = if kernel == "relative_softmax_f32" { 4 } else { 2 } * batch * heads * length;
                let [all, distances] = [row * length, row * (2 * length - 1)];
                sizes(&[1, 2, 3, 4]) == [all, all, distances, distances]
                    && [0, all].contains(&arguments.size(0))
                    && [0, batch * length].contains(&arguments.size(5))
                    && blocks == (batch * heads * length).div_ceil(THREADS / 32)
            }
            "relative_softmax_backward_f32" | "relative_softmax_backward_bf16" => {
                let (batch, heads, length) = (number(10), number(11), number(12));
                let row = if kernel == "relative_softmax_backward_f32" { 4 } else { 2 } * batch * heads * length;
                let [all, distances] = [row * length, row * (2 * length - 1)];
                sizes(&[0, 1, 2, 3, 4]) == [all, distances, distances, all, all]
                    && blocks == (batch * heads * length).div_ceil(THREADS / 32)
            }
            "gate_f32" | "gate_bf16" => {
                let half = if kernel == "gate_f32" { 16 } else { 8 } * number(2);
                sizes(&[0, 1]) == [half, 2 * half] && blocks == number(2).div_ceil(THREADS)
            }
            "gate_backward_f32" | "gate_backward_bf16" => {
                let half = if kernel == "gate_backward_f32" { 16 } else { 8 } * number(3);
                sizes(&[0, 1, 2]) == [2 * half, half, 2 * half] && blocks == number(3).div_ceil(THREADS)
            }
            "sample_tokens_f32" | "sample_tokens_bf16" => {
                let element = if kernel == "sample_tokens_f32" { 4 } else { 2 };
                let rows = 8 * blocks;
                sizes(&[0, 1, 2, 3]) == [rows, element * blocks * number(5), rows, rows]
            }
            "soft_targets_f32" | "soft_targets_bf16" => {
                let element = if kernel == "soft_targets_f32" { 4 } else { 2 };
                let [student, teacher] = [6, 7].map(|index| element * blocks * number(index));
                sizes(&[0, 1, 2, 3]) == [student, 4 * blocks, student, teacher]
                    && [0, 4 * blocks].contains(&arguments.size(4))
                    && number(5) <= number(6).min(number(7))
            }
            "add_column_sums" => {
                let width = number(5);
                arguments.size(3) == 12 * number(4) * width
                    && [0, 1, 2].iter().all(|index| [0, 4 * width].contains(&arguments.size(*index)))
                    && blocks == (3 * width).div_ceil(32)
            }
            "sum_of_squares" => {
                sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3))
            }
            "norm_from_sums" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "digest_chunks" => sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3)),
            "digest_sum" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "scaled_directions" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7, 8]) == [16 * blocks, 8, all, all, 16 * blocks] && arguments.size(5) >= all
            }
            "scaled_step_sizes" => sizes(&[0, 1, 2]) == [4 * blocks, 40 * blocks, 4 * blocks],
            "scaled_apply" => sizes(&[0, 2]) == [16 * blocks, 8] && arguments.size(4) >= arguments.size(3),
            "adamw" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7]) == [16 * blocks, 8, all, all] && arguments.size(5) >= all
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("wrong argument sizes: {arguments:?}")) }
    }
}

/// Reference operations on the meta device.
struct MetaReference(Arc<MetaDevice>);

impl Kernels for MetaReference {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        self.0.zeros(shape, kind)
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        self.0.to_device(Host.upload(values))
    }

    fn read(&self, _: &Tensor, _: usize, _: &mut [u8]) {
        unreachable!("a step reads only with fetch")
    }

    fn write(&self, _: &Tensor, _: usize, _: &[u8]) {}

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.0.fetch(numbers)
    }

    fn with_host_floats(&self, _: &mut Tensor, _: &mut dyn FnMut(&mut [f32])) {
        unreachable!("no all-reduce in this test")
    }

    fn seed(&self, _: u64) {}

    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
        reference::dropout_factors(params, shape)
    }

    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
        reference::sample_tokens(logits, draws)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        reference::norm(values)
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        reference::digest(values)
    }

    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
        reference::apply_update(buffers, update)
    }
}

/// CUDA kernels of the meta device.
pub fn kernels() -> Arc<dyn Kernels> {
    Arc::new(Cuda::new(Arc::new(MetaDevice::default())))
}

/// A global batch of two micro-batches. If they are padded, the second one has padding.
fn batch(layout: Layout) -> GlobalBatch {
    let sample = |length: u32| {
        let masked_tokens = vec![MaskedToken { position: 1, label: 3 }, MaskedToken { position: 2, label: 4 }];
        MaskedSample {
            ids: (5..5 + length).collect(),
            segment_b_start: 3,
            pair_label: Some(1),
            masked_tokens,
            loss_scale: 1.0,
        }
    };
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

/// Counts the fetches, the other reads, and the copies between devices of a step.
fn counts(
    device: &MetaDevice,
    state: &mut TrainState,
    objective: &Objective,
    kind: OptimizerKind,
    layout: Layout,
) -> (usize, i64, i64) {
    let (batch, settings) = (batch(layout), Settings { kind, ..Settings::default() });
    let (mut reads, mut copies) = (0, 0);
    // SAFETY: starts thread-local counters.
    unsafe { lambert_start_counting() };
    let computed = step::forward_backward(objective, state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
    let norm = optim::update(state, &settings, 1e-3, &mut optim::SingleRank).unwrap().norm;
    computed.fetch(state.kernels(), &norm).unwrap();
    // SAFETY: both integers outlive the call.
    unsafe { lambert_stop_counting(&mut reads, &mut copies) };
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

#[test]
fn kernel_with_wrong_sizes_is_rejected() {
    let device = MetaDevice::default();
    let tensor = |count: i64| device.zeros(&[count], Kind::Float);
    let arguments = |count| KernelArguments::new().tensor(&device.zeros(&[1], Kind::Double)).tensor(&tensor(count));
    assert!(device.launch("sum_of_squares", 1, &mut arguments(7).u64(7).u32(16)).is_ok());
    assert!(device.launch("sum_of_squares", 1, &mut arguments(6).u64(7).u32(16)).is_err());
}

#[test]
fn implicit_read_is_an_error() {
    let numbers = MetaDevice::default().zeros(&[3], Kind::Float);
    assert!(torch::guard(|| numbers.sum(Kind::Float).double_value(&[])).is_err());
    let mixed = torch::guard(|| &numbers + &Host.upload(Values::F32(&[1.0, 2.0, 3.0])));
    assert!(mixed.is_err(), "mixed a host tensor with device tensors");
}
