//! LAMB as others define it, each written plainly from its formulas, in f64: what of it are settings here, and which.

use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::{Model, Optimizer as Settings};
use lambert_plan::architecture::Architecture;

use super::update;
use crate::kernels::Host;
use crate::kernels::tests::Draw;
use crate::state::{Buffer, Parameters, TrainState};

const RATE: f64 = 6e-3;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-6;
const DECAY: f64 = 0.01;

/// One tensor: weights and both moments.
struct Tensor {
    name: String,
    range: Range<usize>,
    decays: bool,
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

impl Tensor {
    fn take_in(&mut self, gradients: &[f64]) {
        for (i, g) in gradients.iter().enumerate() {
            self.first[i] = BETA1 * self.first[i] + (1.0 - BETA1) * g;
            self.second[i] = BETA2 * self.second[i] + (1.0 - BETA2) * g * g;
        }
    }

    fn decay(&self) -> f64 {
        if self.decays { DECAY } else { 0.0 }
    }

    /// Apex's `FusedLAMB`, as NVIDIA's BERT recipe calls it: corrected moments, a ratio where there is weight decay
    /// (`everywhere`: its switch `use_nvlamb`), no bounds. `gradients` are divided by their global norm already where it is
    /// above 1.
    fn nvidia(&mut self, gradients: &[f64], updates: i32, everywhere: bool) -> f64 {
        self.take_in(gradients);
        let (missing1, missing2) = (1.0 - BETA1.powi(updates), 1.0 - BETA2.powi(updates));
        let direction = |i: usize| {
            let (mean, square) = (self.first[i] / missing1, self.second[i] / missing2);
            mean / (square.sqrt() + EPS) + self.decay() * self.weights[i]
        };
        let directions: Vec<f64> = (0..gradients.len()).map(direction).collect();
        let (weights, change) = (length(&self.weights), length(&directions));
        let has_ratio = (everywhere || self.decays) && weights != 0.0 && change != 0.0;
        let ratio = if has_ratio { weights / change } else { 1.0 };
        self.move_by(RATE * ratio, &directions);
        ratio
    }

    /// DeepSpeed's `FusedLamb`: moments as they are, a ratio for every tensor, within 0.01 and 10; what the moments lack is in
    /// the rate, after the ratio.
    fn deepspeed(&mut self, gradients: &[f64], updates: i32) -> f64 {
        self.take_in(gradients);
        let direction = |i: usize| self.first[i] / (self.second[i].sqrt() + EPS) + self.decay() * self.weights[i];
        let directions: Vec<f64> = (0..gradients.len()).map(direction).collect();
        let (weights, change) = (length(&self.weights), length(&directions));
        let ratio = if weights != 0.0 && change != 0.0 { (weights / change).clamp(0.01, 10.0) } else { 1.0 };
        self.move_by(deepspeed_rate(updates) * ratio, &directions);
        ratio
    }

    fn move_by(&mut self, rate: f64, directions: &[f64]) {
        self.weights.iter_mut().zip(directions).for_each(|(weight, direction)| *weight -= rate * direction);
    }
}

/// DeepSpeed's step size: the rate, times how much more the first moment lacks than the root of the second.
fn deepspeed_rate(updates: i32) -> f64 {
    RATE * (1.0 - BETA2.powi(updates)).sqrt() / (1.0 - BETA1.powi(updates))
}

/// Ten updates of all tensors of a model of one layer, by both; the worst relative difference of a tensor's weights.
fn against(settings: &Settings, rate: fn(i32) -> f64, other: impl Fn(&mut Tensor, &[f64], i32) -> f64) -> f64 {
    let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
    let mut state = TrainState::new(Parameters::initialize(Arc::new(Host), Architecture::new(&model, 1, 50), 1, 0.02));
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let tensor = |spec: &crate::state::Spec| Tensor {
        name: spec.name.clone(),
        range: spec.range(),
        decays: spec.role.decays(),
        weights: wide(state.parameters.read(spec)),
        first: vec![0.0; spec.count()],
        second: vec![0.0; spec.count()],
    };
    let mut tensors: Vec<Tensor> = state.parameters.specs().iter().map(tensor).collect();
    let mut draw = Draw::new(3);
    for updates in 1..=10 {
        let mut gradients = vec![0.0_f32; state.elements()];
        for (index, tensor) in tensors.iter().enumerate() {
            // From one tensor to the next a hundred times as large, so that no ratio is near another's.
            let scale = [1e-5, 1e-3, 1e-1][index % 3];
            let drawn = draw.values(&[("", tensor.range.len(), true)], scale);
            gradients[tensor.range.clone()].copy_from_slice(&drawn);
        }
        state.write(Buffer::Gradients, 0, &gradients);
        let gradients = wide(gradients);
        let divide = length(&gradients).max(1.0);
        let updated = update(&mut state, settings, rate(updates));
        let ratios = updated.trust_ratios(&state);
        state.count_update();
        for tensor in &mut tensors {
            let own: Vec<f64> = gradients[tensor.range.clone()].iter().map(|gradient| gradient / divide).collect();
            let expected = other(tensor, &own, updates);
            let ratio = ratios.get(&tensor.name).copied().unwrap_or(1.0);
            assert!((ratio / expected - 1.0).abs() < 1e-4, "{} has a ratio of {ratio}, not {expected}", tensor.name);
        }
    }
    let difference = |tensor: &Tensor| {
        let weights = wide(state.read(Buffer::Weights, tensor.range.clone()));
        let apart: Vec<f64> = weights.iter().zip(&tensor.weights).map(|(ours, theirs)| ours - theirs).collect();
        length(&apart) / length(&tensor.weights)
    };
    tensors.iter().map(difference).max_by(f64::total_cmp).unwrap()
}

#[test]
fn nvidias_is_the_default() {
    let error = against(&Settings::default(), |_| RATE, |tensor, g, updates| tensor.nvidia(g, updates, false));
    assert!(error < 1e-5, "{error:e}");
    let everywhere = Settings { trust_undecayed: true, ..Settings::default() };
    let error = against(&everywhere, |_| RATE, |tensor, g, updates| tensor.nvidia(g, updates, true));
    assert!(error < 1e-5, "use_nvlamb: {error:e}");
}

#[test]
fn deepspeeds_is_without_bias_correction_bounded_and_warmed_up_longer() {
    let settings = Settings {
        bias_correction: false,
        trust_undecayed: true,
        trust_ratio: Some([0.01, 10.0]),
        ..Settings::default()
    };
    let error = against(&settings, deepspeed_rate, Tensor::deepspeed);
    assert!(error < 1e-5, "{error:e}");
}
