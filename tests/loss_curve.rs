//! Fifty steps from fixed weights on fixed batches: against the same arithmetic in plain PyTorch (tests/golden/
//! make_curve.py), against the curve of this engine that is kept here, and against themselves.
//!
//! A change that is meant to move the curve writes it anew with `LAMBERT_WRITE_CURVE=1`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert::data::{GlobalBatch, MicroBatch};
use lambert::guard::Verdict;
use lambert::kernels::cuda::Emulator;
use lambert::kernels::{Cuda, Host, Kernels, Reference};
use lambert::model::{Bert, parameters};
use lambert::outcome::{Drawn, StepOutcome};
use lambert::state::{Buffer, Parameters, TrainState};
use lambert::{optim, step};
use lambert_config::run::{Decay, Guard, Model, Optimizer, OptimizerKind, Precision, Stage};
use lambert_config::{RunConfig, schedule};
use lambert_data_prep::random::Key;
use safetensors::SafeTensors;

const STEPS: u64 = 50;
const PIECES: usize = 96;
/// Rows of a global batch and its columns; the second half of the rows is a micro-batch of `NARROW` columns.
const ROWS: usize = 8;
const WIDTH: usize = 16;
const NARROW: usize = 12;
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/own_curve.json");
const THEIRS: &[u8] = include_bytes!("golden/curve.safetensors");

type Curve = Vec<f64>;

struct Golden(SafeTensors<'static>);

impl Golden {
    fn floats(&self, name: &str) -> Vec<f32> {
        let data = self.0.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// The part of an integer tensor \[batches, rows\] or \[batches, rows, width\] that belongs to `batch` and `rows`.
    fn integers(&self, name: &str, batch: usize, rows: std::ops::Range<usize>) -> Vec<Vec<i32>> {
        let tensor = self.0.tensor(name).unwrap();
        let words = tensor.data().chunks_exact(8);
        let values: Vec<i32> = words.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as i32).collect();
        let width = tensor.shape().get(2).copied().unwrap_or(1);
        rows.map(|row| values[(batch * ROWS + row) * width..][..width].to_vec()).collect()
    }

    fn micro_batch(&self, batch: usize, index: usize) -> MicroBatch {
        let rows = index * ROWS / 2..(index + 1) * ROWS / 2;
        let width = [WIDTH, NARROW][index];
        let table = |name: &str| -> Vec<i32> {
            self.integers(name, batch, rows.clone()).iter().flat_map(|row| row[..width].to_vec()).collect()
        };
        let column = |name: &str| self.integers(name, batch, rows.clone()).concat();
        let labels: Vec<(usize, i32)> = table("labels").into_iter().enumerate().filter(|(_, id)| *id >= 0).collect();
        let second = |row: &[i32]| row.iter().position(|segment| *segment == 1).unwrap_or(width) as i32;
        MicroBatch {
            samples: rows.clone().map(|row| row as u64).collect(),
            rows: rows.len(),
            width,
            ids: table("ids"),
            second: table("segments").chunks(width).map(second).collect(),
            lengths: column("lengths"),
            positions: labels.iter().map(|(place, _)| *place as i32).collect(),
            labels: labels.iter().map(|(_, id)| *id).collect(),
            pair_labels: column("pair"),
            digest: 0,
            factors: Vec::new(),
        }
    }

    fn global_batch(&self, number: u64) -> GlobalBatch {
        let micro_batches: Vec<MicroBatch> =
            (0..2).map(|index| self.micro_batch(number as usize % 10, index)).collect();
        GlobalBatch {
            epoch: 0,
            drawn: number * ROWS as u64..(number + 1) * ROWS as u64,
            lengths: micro_batches.iter().flat_map(|batch| &batch.lengths).map(|length| *length as u16).collect(),
            padding: 0,
            balance: 1.0,
            masked_tokens: micro_batches.iter().map(|batch| batch.labels.len() as u64).sum(),
            micro_batches,
        }
    }
}

/// The losses of the fifty steps.
fn train(kind: OptimizerKind, learning_rate: f64) -> Curve {
    train_in(Arc::new(Host), Precision::Fp32, kind, learning_rate).0
}

/// The same, with other kernels or another precision; and the weights in the end.
fn train_in(
    kernels: Arc<dyn Kernels>,
    precision: Precision,
    kind: OptimizerKind,
    learning_rate: f64,
) -> (Curve, Vec<f32>) {
    let golden = Golden(SafeTensors::deserialize(THEIRS).unwrap());
    let shape = Model { layers: 2, hidden: 32, heads: 4, intermediate: 64, positions: 24, ..Model::default() };
    let model = Model { dropout: 0.0, precision, ..shape };
    let optimizer = Optimizer { kind, ..Optimizer::default() };
    let config = RunConfig { model, optimizer, ..RunConfig::default() };
    let parameters = Parameters::zeros(kernels, parameters::specs(&config.model, 2, PIECES));
    for spec in parameters.specs() {
        parameters.write(spec, &golden.floats(&format!("weight:{}", spec.name)));
    }
    let bert = Bert::new(&parameters, &config.model, 2);
    let mut state = TrainState::new(parameters);
    let stage = Stage { steps: STEPS, warmup: 0.1, decay: Decay::Linear, learning_rate, ..Stage::default() };
    let one = |number: u64| {
        let batch = golden.global_batch(number);
        let computed = step::forward_backward(&bert, &mut state, &batch, Key::new(1)).unwrap();
        let norm = optim::update(&mut state, &config.optimizer, schedule::learning_rate(&stage, number));
        let (totals, norm) = computed.fetch(state.kernels(), &norm).unwrap();
        let drawn = Drawn { dataset: "golden".into(), samples: batch.drawn, passed: 0 };
        let outcome = StepOutcome { before: number, drawn, totals, norm, ..StepOutcome::default() };
        assert_eq!(outcome.conclude(&mut state, &Guard::default()), Verdict::Sound);
        outcome.loss()
    };
    let curve = (0..STEPS).map(one).collect();
    (curve, state.read(Buffer::Weights, 0..state.elements()))
}

fn worst<'a>(one: &Curve, other: impl IntoIterator<Item = &'a f64>) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).max_by(f64::total_cmp).unwrap()
}

#[test]
fn fifty_steps_lose_what_they_should() {
    let golden = Golden(SafeTensors::deserialize(THEIRS).unwrap());
    let kinds = [("adamw", OptimizerKind::Adamw, 5e-3), ("lamb", OptimizerKind::Lamb, 2e-2)];
    let curves: BTreeMap<&str, Curve> = kinds.into_iter().map(|(name, kind, rate)| (name, train(kind, rate))).collect();
    if std::env::var_os("LAMBERT_WRITE_CURVE").is_some() {
        std::fs::write(OWN, serde_json::to_string_pretty(&curves).unwrap() + "\n").unwrap();
    }
    let own: BTreeMap<String, Curve> = serde_json::from_slice(&std::fs::read(OWN).unwrap()).unwrap();
    for (name, kind, rate) in kinds {
        let curve = &curves[name];
        let theirs: Curve = golden.floats(&format!("losses:{name}")).into_iter().map(f64::from).collect();
        assert_eq!((curve.len(), theirs.len(), own[name].len()), (50, 50, 50));
        assert!(curve[49] < 0.8 * curve[0], "{name} learns nothing: {curve:?}");
        let (torch, kept) = (worst(curve, &theirs), worst(curve, &own[name]));
        println!("{name}: from {:.4} to {:.4}; from PyTorch's {torch:.1e}, from ours {kept:.1e}", curve[0], curve[49]);
        assert!(torch < 1e-4, "{name}: {torch:e} from PyTorch");
        assert!(kept < 1e-5, "{name}: {kept:e} from the curve that is kept");
        assert_eq!(train(kind, rate), *curve, "{name}: two runs differ");
    }
}

/// The kernels of plain libtorch operations learn the same.
#[test]
fn the_reference_s_kernels_lose_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let reference = Arc::new(Reference::new(tch::Device::Cpu));
        let apart = worst(&train_in(reference, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: plain operations differ by {apart:.1e} at the most");
        assert!(apart < 1e-5, "{kind:?}: {apart:e}");
    }
}

/// The kernels of a GPU, run by a processor, learn the same.
#[test]
fn an_emulated_card_loses_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let card = Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let apart = worst(&train_in(card, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: an emulated card differs by {apart:.1e} at the most");
        assert!(apart < 1e-5, "{kind:?}: {apart:e}");
    }
}

/// Weights and moments of 32 bits take in updates that 16 bits would lose.
#[test]
fn bf16_loses_nearly_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let (curve, weights) = train_in(Arc::new(Host), Precision::Bf16, kind, rate);
        let apart = worst(&curve, &train(kind, rate));
        println!("{kind:?}: bf16 ends at {:.4}, {apart:.1e} from f32 at the most", curve[49]);
        assert!((1e-6..0.03).contains(&apart), "{kind:?}: {apart:e}");
        let coarse = weights.iter().filter(|weight| weight.to_bits().trailing_zeros() >= 16).count();
        assert!(coarse < weights.len() / 10, "{coarse} of {} weights have 16 bits", weights.len());
    }
}
