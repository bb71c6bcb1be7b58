//! Trains for fifty steps, with any kernels. The initial weights and the batches are fixed.

use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::{Decay, Guard, Model, Optimizer, OptimizerKind, Precision, Stage};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::Layout;
use lambert_plan::schedule;
use lambert_worker::data::{GlobalBatch, MicroBatch};
use lambert_worker::kernels::{Host, Kernels};
use lambert_worker::objective::Objective;
use lambert_worker::optim;
use lambert_worker::recovery::guard::GuardVerdict;
use lambert_worker::state::{Buffer, Parameters, TrainState};
use lambert_worker::train::outcome::StepOutcome;
use lambert_worker::train::sample_position::StepSamples;
use lambert_worker::train::step;
use safetensors::SafeTensors;

const STEPS: u64 = 50;
/// Number of tokens of the vocabulary.
pub const VOCABULARY: usize = 96;
/// Number of rows of a global batch. The first half of the rows is a micro-batch of width `WIDTH`, the second half is
/// one of width `NARROW`.
const ROWS: usize = 8;
const WIDTH: usize = 16;
const NARROW: usize = 12;
const REFERENCE: &[u8] = include_bytes!("../golden/curve.safetensors");

/// Loss of each step.
pub type Curve = Vec<f64>;

/// Tensors written by tests/golden/make_curve.py.
pub struct Golden(SafeTensors<'static>);

impl Golden {
    pub fn read() -> Self {
        Self(SafeTensors::deserialize(REFERENCE).unwrap())
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let data = self.0.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Returns the slice for `batch` and `rows` of an integer tensor \[batches, rows\] or \[batches, rows, width\].
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
            sample_indices: rows.clone().map(|row| row as u64).collect(),
            rows: rows.len(),
            seq_len: width,
            layout: Layout::Padded,
            ids: table("ids"),
            segment_b_starts: table("segments").chunks(width).map(second).collect(),
            lengths: column("lengths"),
            positions: labels.iter().map(|(dir, _)| *dir as i32).collect(),
            labels: labels.iter().map(|(_, id)| *id).collect(),
            pair_labels: column("pair"),
            span_targets: Default::default(),
            digest: 0,
            loss_scales: Vec::new(),
        }
    }

    fn global_batch(&self, number: u64) -> GlobalBatch {
        let micro_batches: Vec<MicroBatch> =
            (0..2).map(|index| self.micro_batch(number as usize % 10, index)).collect();
        GlobalBatch {
            datasets: Vec::new(),
            sample_range: number * ROWS as u64..(number + 1) * ROWS as u64,
            lengths: micro_batches.iter().flat_map(|batch| &batch.lengths).map(|length| *length as u16).collect(),
            padding: 0,
            imbalance: 1.0,
            masked_tokens: micro_batches.iter().map(|batch| batch.labels.len() as u64).sum(),
            shard_micro_batches: vec![micro_batches.len()],
            micro_batches,
        }
    }
}

/// Returns the losses of the fifty steps.
pub fn train(kind: OptimizerKind, learning_rate: f64) -> Curve {
    train_in(Arc::new(Host), Precision::Fp32, kind, learning_rate).0
}

/// Returns the losses of the fifty steps and the final weights, with given kernels and precision.
pub fn train_in(
    kernels: Arc<dyn Kernels>,
    precision: Precision,
    kind: OptimizerKind,
    learning_rate: f64,
) -> (Curve, Vec<f32>) {
    let golden = Golden::read();
    let shape = Model { layers: 2, hidden: 32, heads: 4, intermediate: 64, positions: 24, ..Model::default() };
    let model = Model { dropout: 0.0, precision, ..shape };
    let optimizer = Optimizer { kind, ..Optimizer::default() };
    let config = RunConfig { model, optimizer, ..RunConfig::default() };
    let parameters = Parameters::zeros(kernels, Architecture::new(&config.model, 2, VOCABULARY));
    for spec in parameters.specs() {
        parameters.write(spec, &golden.floats(&format!("weight:{}", spec.name)));
    }
    train_from(parameters, &config, learning_rate)
}

/// Returns the losses of the fifty steps of a configuration and the final weights. `parameters` are the initial weights.
pub fn train_from(parameters: Parameters, config: &RunConfig, learning_rate: f64) -> (Curve, Vec<f32>) {
    let golden = Golden::read();
    let objective = Objective::new(&parameters, &config.model, &config.objective);
    let mut state = TrainState::new(parameters);
    let stage = Stage { steps: STEPS, warmup: 0.1, decay: Decay::Linear, learning_rate, ..Stage::default() };
    let one = |number: u64| {
        let batch = golden.global_batch(number);
        let computed =
            step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
        let rate = schedule::learning_rate(&stage, number);
        let norm = optim::update(&mut state, &config.optimizer, rate, &mut optim::SingleRank).unwrap().norm;
        let (totals, norm) = computed.fetch(state.kernels(), &norm).unwrap();
        let drawn = StepSamples { mixture: "golden".into(), samples: batch.sample_range, ..StepSamples::default() };
        let outcome = StepOutcome { steps_before: number, drawn, totals, norm, ..StepOutcome::default() };
        assert_eq!(outcome.judge_and_count(&mut state, &Guard::default()), GuardVerdict::Apply);
        outcome.loss()
    };
    let curve = (0..STEPS).map(one).collect();
    (curve, state.read(Buffer::Weights, 0..state.elements()))
}

/// Returns the largest difference between the losses of two curves at the same step.
pub fn max_difference<'a>(one: &Curve, other: impl IntoIterator<Item = &'a f64>) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).max_by(f64::total_cmp).unwrap()
}
