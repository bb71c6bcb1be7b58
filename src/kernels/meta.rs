//! A whole step on libtorch's meta device, whose tensors have shapes and no data: a read that nobody sees in the code, or a
//! shape that follows from data, is an error there. What may be read, and what is copied to the device, is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lambert_config::run::{Model, Norm, Optimizer as Settings, OptimizerKind};
use lambert_data_prep::random::Key;

use super::*;
use crate::data::batch::MaskedSample;
use crate::data::{GlobalBatch, MicroBatch};
use crate::masking::Hidden;
use crate::model::{Bert, parameters};
use crate::state::{Parameters, TrainState};
use crate::{optim, step, torch};

unsafe extern "C" {
    fn lambert_to_meta(host: *const torch_sys::C_tensor) -> *mut torch_sys::C_tensor;
    fn lambert_observe();
    fn lambert_observed(reads: *mut i64, copies: *mut i64);
}

/// The reference's operations on the meta device.
#[derive(Default)]
struct Meta {
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

impl Kernels for Meta {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        // From one element, and on the device: no copy of the whole.
        to_meta(&Host.zeros(&[1], kind)).expand(shape, false).zeros_like()
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        to_meta(&Host.upload(values))
    }

    fn read(&self, _: &Tensor, _: usize, _: &mut [u8]) {
        unreachable!("a step reads nothing but by fetch")
    }

    fn write(&self, _: &Tensor, _: usize, _: &[u8]) {}

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        assert_eq!(numbers.kind(), Kind::Double);
        vec![1.0; numbers.size()[0] as usize]
    }

    fn with_floats(&self, _: &mut Tensor, _: &mut dyn FnMut(&mut [f32])) {
        unreachable!("sums over ranks are no part of a rank's step")
    }

    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor {
        reference::dropout_factors(draws, shape)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        reference::norm(values)
    }

    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) {
        reference::change(buffers, update);
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
fn counts(model: &Model, kind: OptimizerKind, recompute: bool) -> (usize, i64, i64) {
    let (meta, layers) = (Arc::new(Meta::default()), 2);
    let specs = parameters::specs(model, layers, 50);
    let mut state = TrainState::new(Parameters::zeros(meta.clone(), specs));
    let mut bert = Bert::new(&state.parameters, model, layers);
    bert.recompute = recompute;
    let (batch, settings) = (batch(), Settings { kind, ..Settings::default() });
    let (mut reads, mut copies) = (0, 0);
    // SAFETY: counters that live as long as the process.
    unsafe { lambert_observe() };
    let computed = step::forward_backward(&bert, &mut state, &batch, Key::new(1)).unwrap();
    let norm = torch::guard(|| optim::update(&mut state, &settings, 1e-3)).unwrap();
    computed.fetch(&*meta, &norm).unwrap();
    // SAFETY: both integers live for the call.
    unsafe { lambert_observed(&mut reads, &mut copies) };
    (meta.fetched.load(Ordering::Relaxed), reads, copies)
}

/// Ids, segments, sample numbers, positions, labels and pair labels of each micro-batch; and one mask of padding.
const UPLOADS: i64 = 2 * 6 + 1;
/// One element of what `zeros` makes during a step: the sums.
const ZEROS: i64 = 1;

#[test]
fn a_step_reads_once_and_copies_what_it_must() {
    let shape = Model { hidden: 32, heads: 2, intermediate: 64, positions: 16, ..Model::default() };
    for norm in [Norm::Post, Norm::Pre] {
        for (dropout, pad_vocabulary_to) in [(0.1, 1), (0.0, 8)] {
            for (kind, recompute) in [(OptimizerKind::Lamb, false), (OptimizerKind::Adamw, true)] {
                let model = Model { norm, dropout, pad_vocabulary_to, ..shape.clone() };
                let counts = counts(&model, kind, recompute);
                assert_eq!(counts, (1, 0, UPLOADS + ZEROS), "{norm:?}, {dropout}, {kind:?}");
            }
        }
    }
}

#[test]
fn a_number_read_on_the_way_is_an_error() {
    let numbers = Meta::default().zeros(&[3], Kind::Float);
    assert!(torch::guard(|| numbers.sum(Kind::Float).double_value(&[])).is_err());
    let mixed = torch::guard(|| &numbers + &Host.upload(Values::F32(&[1.0, 2.0, 3.0])));
    assert!(mixed.is_err(), "a tensor in main memory among those of the device");
}
