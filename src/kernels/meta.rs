//! A whole step on libtorch's meta device, whose tensors have shapes and no data: a read that nobody sees in the code, or a
//! shape that follows from data, is an error there. What may be read, and what is copied to the device, is counted. Once with
//! the reference's operations, once as on a card, whose own kernels are replaced by a check of what they are called with.

mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lambert_config::run::{Model, Norm, Optimizer as Settings, OptimizerKind, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;

use super::cuda::launch::{Arguments, Card, THREADS};
use super::*;
use crate::data::batch::MaskedSample;
use crate::data::{GlobalBatch, MicroBatch};
use crate::masking::Hidden;
use crate::model;
use crate::model::tests::architectures::CASES;
use crate::objective::Objective;
use crate::optim;
use crate::state::{Parameters, TrainState};
use crate::torch;
use crate::train::step;

unsafe extern "C" {
    fn lambert_to_meta(host: *const torch_sys::C_tensor) -> *mut torch_sys::C_tensor;
    fn lambert_observe();
    fn lambert_observed(reads: *mut i64, copies: *mut i64);
}

/// The meta device.
#[derive(Default)]
struct Nothing {
    /// Calls of [`Kernels::fetch`].
    fetched: AtomicUsize,
}

fn to_meta(host: &Tensor) -> Tensor {
    // SAFETY: a live at::Tensor goes in; a new one that nothing else holds comes out.
    unsafe {
        let made = lambert_to_meta(host.as_ptr());
        assert!(!made.is_null());
        Tensor::from_ptr(made)
    }
}

impl Card for Nothing {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        // From one element, and on the device: no copy of the whole.
        to_meta(&Host.zeros(&[], kind)).expand(shape, false).zeros_like()
    }

    fn place(&self, host: Tensor) -> Tensor {
        to_meta(&host)
    }

    fn begin_copies(&self, _: Vec<Copy>, _: Memory) -> Box<dyn Copies> {
        unreachable!("a step takes no snapshot")
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        assert_eq!(numbers.kind(), Kind::Double);
        vec![1.0; numbers.size()[0] as usize]
    }

    fn seed(&self, _: u64) {}

    /// Checks the sizes of what a kernel reads and writes, in bytes.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut Arguments) -> Result<(), String> {
        let sizes = |places: &[usize]| places.iter().map(|place| arguments.size(*place)).collect::<Vec<_>>();
        let number = |place: usize| arguments.number(place);
        let fits = match kernel {
            "dropout_f32" | "dropout_bf16" => {
                let element = if kernel == "dropout_f32" { 4 } else { 2 };
                let (lines, heads, width, length) = (number(7), number(8), number(9), number(10));
                let added = arguments.size(2);
                let all = element * lines * length;
                sizes(&[0, 1, 3]) == [all, all, 8 * lines / heads / width]
                    && (added == 0 || added == all)
                    && blocks == lines.div_ceil(THREADS / 32)
            }
            "squares" => sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3)),
            "root_of_sums" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "words" => sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3)),
            "sum_of_words" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "lamb_directions" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7, 8]) == [16 * blocks, 8, all, all, 16 * blocks] && arguments.size(5) >= all
            }
            "lamb_rates" => sizes(&[0, 1, 2]) == [4 * blocks, 40 * blocks, 4 * blocks],
            "lamb_apply" => sizes(&[0, 2]) == [16 * blocks, 8] && arguments.size(4) >= arguments.size(3),
            "adamw" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7]) == [16 * blocks, 8, all, all] && arguments.size(5) >= all
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("called with {arguments:?}")) }
    }
}

/// The reference's operations on the meta device.
struct Meta(Arc<Nothing>);

impl Kernels for Meta {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        self.0.zeros(shape, kind)
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        self.0.place(Host.upload(values))
    }

    fn read(&self, _: &Tensor, _: usize, _: &mut [u8]) {
        unreachable!("a step reads nothing but by fetch")
    }

    fn write(&self, _: &Tensor, _: usize, _: &[u8]) {}

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.0.fetch(numbers)
    }

    fn with_floats(&self, _: &mut Tensor, _: &mut dyn FnMut(&mut [f32])) {
        unreachable!("sums over ranks are no part of a rank's step")
    }

    fn seed(&self, _: u64) {}

    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor {
        reference::dropout_factors(draws, shape)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        reference::norm(values)
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        reference::digest(values)
    }

    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor> {
        reference::change(buffers, update)
    }
}

/// A global batch of two micro-batches, the second of them padded.
fn batch() -> GlobalBatch {
    let sample = |length: u32| {
        let hidden = vec![Hidden { position: 1, label: 3 }, Hidden { position: 2, label: 4 }];
        MaskedSample { ids: (5..5 + length).collect(), segment_b_start: 3, pair_label: Some(1), hidden, factor: 1.0 }
    };
    let micro_batches = vec![
        MicroBatch::new(&[0, 1], 12, 0, &[sample(12), sample(12)]),
        MicroBatch::new(&[2, 3], 10, 0, &[sample(10), sample(8)]),
    ];
    GlobalBatch { lengths: vec![12, 12, 10, 8], masked_tokens: 8, drawn: 0..4, micro_batches, ..GlobalBatch::default() }
}

/// Of a step: calls of fetch, numbers read otherwise, and copies between devices.
fn counts(device: &Nothing, state: &mut TrainState, objective: &Objective, kind: OptimizerKind) -> (usize, i64, i64) {
    let (batch, settings) = (batch(), Settings { kind, ..Settings::default() });
    let (mut reads, mut copies) = (0, 0);
    // SAFETY: counters that live as long as the process.
    unsafe { lambert_observe() };
    let computed = step::forward_backward(objective, state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
    let norm = torch::guard(|| optim::update(state, &settings, 1e-3)).unwrap().norm;
    computed.fetch(state.kernels(), &norm).unwrap();
    // SAFETY: both integers live for the call.
    unsafe { lambert_observed(&mut reads, &mut copies) };
    (device.fetched.swap(0, Ordering::Relaxed), reads, copies)
}

/// The same of a new state of BERT.
fn counts_of_bert(
    device: &Nothing,
    kernels: Arc<dyn Kernels>,
    model: &Model,
    kind: OptimizerKind,
    recompute: bool,
) -> (usize, i64, i64) {
    let mut state = TrainState::new(Parameters::zeros(kernels, Architecture::new(model, 2, 50)));
    state.parameters.keep_low(model::kind(model));
    let objective = step::tests::objective(&state, model).recomputing(recompute);
    counts(device, &mut state, &objective, kind)
}

/// One for each micro-batch.
const UPLOADS: i64 = 2;
/// One element of what `zeros` makes during a step: the sums.
const ZEROS: i64 = 1;
/// What an update of a card's needs: the rules; and, in the first step, where the chunks of the parameters are. What the norm
/// and LAMB's sums and rates begin with.
const CARD: i64 = 3 + 2;
const CARD_LAMB: i64 = CARD + 2;

#[test]
fn a_step_reads_once_and_copies_what_it_must() {
    let shape = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    for norm in [Norm::Post, Norm::Pre] {
        for (dropout, pad_vocabulary_to, precision) in
            [(0.1, 1, Precision::Fp32), (0.0, 8, Precision::Fp32), (0.1, 8, Precision::Bf16)]
        {
            for (kind, recompute) in [(OptimizerKind::Lamb, false), (OptimizerKind::Adamw, true)] {
                let model = Model { norm, dropout, pad_vocabulary_to, precision, ..shape.clone() };
                let device = Arc::new(Nothing::default());
                let meta = Arc::new(Meta(device.clone()));
                let seen = counts_of_bert(&device, meta, &model, kind, recompute);
                assert_eq!(seen, (1, 0, UPLOADS + ZEROS), "{norm:?}, {dropout}, {kind:?}, {precision:?}");
                let card = Arc::new(Cuda::new(device.clone()));
                let seen = counts_of_bert(&device, card, &model, kind, recompute);
                let of_card = if kind == OptimizerKind::Lamb { CARD_LAMB } else { CARD };
                assert_eq!(
                    seen,
                    (1, 0, UPLOADS + ZEROS + of_card),
                    "a card: {norm:?}, {dropout}, {kind:?}, {precision:?}"
                );
            }
        }
    }
}

#[test]
fn a_step_of_every_architecture_reads_once() {
    let model = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    for case in CASES {
        for recompute in [false, true] {
            let device = Arc::new(Nothing::default());
            let kernels: [Arc<dyn Kernels>; 2] = [Arc::new(Meta(device.clone())), Arc::new(Cuda::new(device.clone()))];
            for kernels in kernels {
                let mut state = case.state(kernels, &model);
                let objective = case.objective(&state.parameters, &model).recomputing(recompute);
                let (fetched, reads, _) = counts(&device, &mut state, &objective, OptimizerKind::Lamb);
                assert_eq!((fetched, reads), (1, 0), "{} {recompute}", case.name);
            }
        }
    }
}

#[test]
fn a_kernel_of_wrong_sizes_is_refused() {
    let card = Nothing::default();
    let tensor = |count: i64| card.zeros(&[count], Kind::Float);
    let arguments = |count| Arguments::new().tensor(&card.zeros(&[1], Kind::Double)).tensor(&tensor(count));
    assert!(card.launch("squares", 1, &mut arguments(7).u64(7).u32(16)).is_ok());
    assert!(card.launch("squares", 1, &mut arguments(6).u64(7).u32(16)).is_err());
}

#[test]
fn a_number_read_on_the_way_is_an_error() {
    let numbers = Nothing::default().zeros(&[3], Kind::Float);
    assert!(torch::guard(|| numbers.sum(Kind::Float).double_value(&[])).is_err());
    let mixed = torch::guard(|| &numbers + &Host.upload(Values::F32(&[1.0, 2.0, 3.0])));
    assert!(mixed.is_err(), "a tensor in main memory among those of the device");
}
