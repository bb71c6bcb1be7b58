//! Muon compared with `torch.optim.Muon` (tests/golden/make_muon.py), and with AdamW for the other parameters.

use std::sync::Arc;

use lambert_config::run::{Family, Model, OptimizerKind};
use lambert_plan::architecture::Architecture;
use serde::Deserialize;

use super::*;
use crate::kernels::cuda::Emulator;
use crate::kernels::tests::RandomValues;
use crate::kernels::{Cuda, Host, Kernels, Values};
use crate::optim::{self, SingleRank};
use crate::state::Parameters;

#[derive(Deserialize)]
struct Golden {
    shapes: Vec<[usize; 2]>,
    decay: f64,
    rates: Vec<f64>,
    weights: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    settings: Muon,
    /// Weights after the last update.
    weights: Vec<f32>,
}

fn settings(muon: Muon) -> Settings {
    Settings { kind: OptimizerKind::Muon, muon, ..Settings::default() }
}

/// Training state of a model with one layer of `hidden` x `hidden` and `hidden` x `intermediate` matrices.
fn state(kernels: Arc<dyn Kernels>, hidden: usize, intermediate: usize) -> TrainState {
    let model = Model { hidden, heads: 2, intermediate, positions: 16, ..Model::default() };
    TrainState::new(Parameters::initialize(kernels, Architecture::new(&model, 2, 50), 1, 0.02))
}

fn random_gradients(state: &TrainState, random: &mut RandomValues) -> Vec<f32> {
    random.values(&[("", state.elements(), true)], 1e-2)
}

#[test]
fn matrices_match_torch() {
    let golden: Golden = serde_json::from_str(include_str!("../../../tests/golden/muon.json")).unwrap();
    for Case { settings: muon, weights: expected } in &golden.cases {
        let settings = Settings { weight_decay: golden.decay, clip_norm: 0.0, ..settings(*muon) };
        let mut start = 0;
        for [rows, columns] in &golden.shapes {
            let range = start..start + rows * columns;
            start = range.end;
            // The tensors of a layer, with the values of the golden file in one of them.
            let [hidden, intermediate] =
                if rows == columns { [*rows, 16] } else { [*rows.min(columns), *rows.max(columns)] };
            let mut state = state(Arc::new(Host), hidden, intermediate);
            let has_shape = |spec: &&ParamSpec| spec.matrices == 1 && spec.sizes() == [*rows, *columns];
            let place = state.parameters.specs().iter().find(has_shape).unwrap().range();
            state.write(Buffer::Weights, place.start, &golden.weights[range.clone()]);
            for (gradients, rate) in golden.gradients.iter().zip(&golden.rates) {
                state.write(Buffer::Gradients, place.start, &gradients[range.clone()]);
                optim::update(&mut state, &settings, *rate, &mut SingleRank).unwrap();
            }
            let actual = state.read(Buffer::Weights, place);
            let differences = actual.iter().zip(&expected[range]).map(|(actual, expected)| (actual - expected).abs());
            let error = differences.max_by(f32::total_cmp).unwrap();
            println!("{muon:?}, {rows} x {columns}: {error:.1e}");
            let limit = if muon.precision == MuonPrecision::Fp32 { 2e-6 } else { 2e-3 };
            assert!(error < limit, "{muon:?}, {rows} x {columns}: {error:e}");
        }
    }
}

/// Query, key and value of ModernBERT, and both halves of its gated layer, are orthogonalized separately.
#[test]
fn stacked_matrices_are_orthogonalized_one_by_one() {
    let model = Model { hidden: 16, heads: 2, intermediate: 24, positions: 16, ..Family::Modernbert.model() };
    let parameters = Parameters::initialize(Arc::new(Host), Architecture::new(&model, 2, 50), 1, 0.02);
    let mut state = TrainState::new(parameters);
    let stacked: Vec<ParamSpec> = state.parameters.specs().iter().filter(|spec| spec.matrices > 1).cloned().collect();
    let counts: Vec<usize> = stacked.iter().map(|spec| spec.matrices).collect();
    assert_eq!(counts, [2, 3, 2, 3]);
    let muon = Muon { precision: MuonPrecision::Fp32, iterations: 12, ..Muon::default() };
    let gradients = random_gradients(&state, &mut RandomValues::new(5));
    state.write(Buffer::Gradients, 0, &gradients);
    optim::update(&mut state, &settings(muon), 1e-2, &mut SingleRank).unwrap();
    for spec in stacked {
        let all = Host.upload(Values::F32(&state.read(Buffer::Gradients, spec.range())));
        for part in all.view([spec.matrices as i64, -1, spec.shape[1]]).unbind(0) {
            let (_, singular_values, _) = part.svd(true, true);
            let [least, most] = [singular_values.min(), singular_values.max()].map(|value| value.double_value(&[]));
            assert!(least > 0.6 && most < 1.3, "{}: {least} to {most}", spec.name);
        }
    }
}

#[test]
fn other_parameters_are_updated_by_adamw() {
    for kernels in [Arc::new(Host) as Arc<dyn Kernels>, Arc::new(Cuda::new(Arc::new(Emulator::default())))] {
        let mut states = [state(kernels.clone(), 16, 32), state(kernels.clone(), 16, 32)];
        let muon = Settings { beta2: 0.98, ..settings(Muon { adamw_learning_rate_ratio: 0.5, ..Muon::default() }) };
        let adamw = Settings { kind: OptimizerKind::Adamw, ..muon.clone() };
        let mut random = RandomValues::new(7);
        for _ in 0..3 {
            let gradients = random_gradients(&states[0], &mut random);
            for (state, (settings, rate)) in states.iter_mut().zip([(&muon, 2e-3), (&adamw, 1e-3)]) {
                state.write(Buffer::Gradients, 0, &gradients);
                optim::update(state, settings, rate, &mut SingleRank).unwrap();
                state.count_update();
            }
        }
        let mut updated_by_muon = Vec::new();
        for spec in states[0].parameters.specs() {
            let [own, other] = [&states[0], &states[1]].map(|state| {
                [Buffer::Weights, Buffer::First, Buffer::Second].map(|buffer| state.read(buffer, spec.range()))
            });
            let is_matrix = spec.id.layer.is_some() && spec.shape.len() == 2;
            assert_eq!(own != other, is_matrix, "{}", spec.name);
            assert_eq!(own[2].iter().all(|value| *value == 0.0), is_matrix, "{}", spec.name);
            updated_by_muon.extend(is_matrix.then_some(spec.matrices));
        }
        // Two layers with query, key, value, attention output, up and down projection.
        assert_eq!(updated_by_muon, [1; 12]);
    }
}

#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let mut state = state(Arc::new(Host), 16, 32);
    let mut gradients = random_gradients(&state, &mut RandomValues::new(2));
    state.write(Buffer::Gradients, 0, &gradients);
    optim::update(&mut state, &settings(Muon::default()), 1e-2, &mut SingleRank).unwrap();
    let all = |state: &TrainState| {
        [Buffer::Weights, Buffer::First, Buffer::Second].map(|buffer| state.read(buffer, 0..state.elements()))
    };
    let before = all(&state);
    gradients[3] = f32::NAN;
    state.write(Buffer::Gradients, 0, &gradients);
    let norm = optim::update(&mut state, &settings(Muon::default()), 1e-2, &mut SingleRank).unwrap().norm;
    assert!(norm.double_value(&[]).is_nan());
    assert!(all(&state) == before);
}

/// A momentum with the norm 1 is clipped like any other gradient.
#[test]
fn clipping_applies_to_the_momentum() {
    let momentum = |clip_norm: f64, factor: f32| {
        let mut state = state(Arc::new(Host), 16, 32);
        let gradients = random_gradients(&state, &mut RandomValues::new(2));
        state.write(Buffer::Gradients, 0, &gradients.iter().map(|value| factor * value).collect::<Vec<_>>());
        let clipped = Settings { clip_norm, ..settings(Muon::default()) };
        let norm = optim::update(&mut state, &clipped, 1e-2, &mut SingleRank).unwrap().norm.double_value(&[]);
        let matrices = all(&state).into_iter().next().unwrap();
        (norm, state.kernels().norm(&matrices.view(state.buffer(Buffer::First)).view([-1])).double_value(&[]))
    };
    let (norm, free) = momentum(0.0, 1.0);
    let (large, clipped) = momentum(norm / 4.0, 8.0);
    assert!((large / norm / 8.0 - 1.0).abs() < 1e-5);
    assert!((clipped / (free / 4.0) - 1.0).abs() < 1e-5, "{clipped} {free}");
}
