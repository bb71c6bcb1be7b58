//! Checks LAMB against f64 reference implementations of the variants in NVIDIA Apex and DeepSpeed, and
//! shows which settings select each variant.

use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::{Model, Optimizer as Settings};
use lambert_plan::architecture::Architecture;

use super::{SingleRank, update};
use crate::kernels::Host;
use crate::kernels::tests::RandomValues;
use crate::state::{Buffer, Parameters, TrainState};

const RATE: f64 = 6e-3;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-6;
const DECAY: f64 = 0.01;

/// Weights and both moments of one tensor.
struct LambTensor {
    name: String,
    range: Range<usize>,
    decays: bool,
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

fn l2_norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

impl LambTensor {
    fn update_moments(&mut self, gradients: &[f64]) {
        for (i, g) in gradients.iter().enumerate() {
            self.first[i] = BETA1 * self.first[i] + (1.0 - BETA1) * g;
            self.second[i] = BETA2 * self.second[i] + (1.0 - BETA2) * g * g;
        }
    }

    fn decay(&self) -> f64 {
        if self.decays { DECAY } else { 0.0 }
    }

    /// Update of `FusedLAMB` in Apex, with the arguments of NVIDIA's BERT recipe: bias correction, and a trust
    /// ratio without bounds. The trust ratio applies only to tensors with weight decay. With `everywhere`, it applies
    /// to all tensors (`use_nvlamb` in Apex). `gradients` are already clipped to a global norm of 1. Returns the trust
    /// ratio.
    fn step_apex(&mut self, gradients: &[f64], updates: i32, everywhere: bool) -> f64 {
        self.update_moments(gradients);
        let (correction1, correction2) = (1.0 - BETA1.powi(updates), 1.0 - BETA2.powi(updates));
        let direction = |i: usize| {
            let (mean, square) = (self.first[i] / correction1, self.second[i] / correction2);
            mean / (square.sqrt() + EPS) + self.decay() * self.weights[i]
        };
        let directions: Vec<f64> = (0..gradients.len()).map(direction).collect();
        let (weights, change) = (l2_norm(&self.weights), l2_norm(&directions));
        let has_ratio = (everywhere || self.decays) && weights != 0.0 && change != 0.0;
        let ratio = if has_ratio { weights / change } else { 1.0 };
        self.apply(RATE * ratio, &directions);
        ratio
    }

    /// Update of `FusedLamb` in DeepSpeed: no bias correction of the moments, and a trust ratio in \[0.01, 10\] for
    /// every tensor. The learning rate contains the bias correction, so the correction does not affect the trust ratio.
    fn step_deepspeed(&mut self, gradients: &[f64], updates: i32) -> f64 {
        self.update_moments(gradients);
        let direction = |i: usize| self.first[i] / (self.second[i].sqrt() + EPS) + self.decay() * self.weights[i];
        let directions: Vec<f64> = (0..gradients.len()).map(direction).collect();
        let (weights, change) = (l2_norm(&self.weights), l2_norm(&directions));
        let ratio = if weights != 0.0 && change != 0.0 { (weights / change).clamp(0.01, 10.0) } else { 1.0 };
        self.apply(deepspeed_rate(updates) * ratio, &directions);
        ratio
    }

    fn apply(&mut self, rate: f64, directions: &[f64]) {
        self.weights.iter_mut().zip(directions).for_each(|(weight, direction)| *weight -= rate * direction);
    }
}

/// Step size of DeepSpeed: `learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`.
fn deepspeed_rate(updates: i32) -> f64 {
    RATE * (1.0 - BETA2.powi(updates)).sqrt() / (1.0 - BETA1.powi(updates))
}

/// Applies ten updates with both implementations to a one-layer model. Returns the largest relative
/// difference between the weights of a tensor.
fn max_weight_error(
    settings: &Settings,
    rate: fn(i32) -> f64,
    other: impl Fn(&mut LambTensor, &[f64], i32) -> f64,
) -> f64 {
    let model = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
    let mut state = TrainState::new(Parameters::initialize(Arc::new(Host), Architecture::new(&model, 1, 50), 1, 0.02));
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let tensor = |spec: &crate::state::ParamSpec| LambTensor {
        name: spec.name.clone(),
        range: spec.range(),
        decays: spec.role.decays(),
        weights: wide(state.parameters.read(spec)),
        first: vec![0.0; spec.count()],
        second: vec![0.0; spec.count()],
    };
    let mut tensors: Vec<LambTensor> = state.parameters.specs().iter().map(tensor).collect();
    let mut random = RandomValues::new(3);
    for updates in 1..=10 {
        let mut gradients = vec![0.0_f32; state.elements()];
        for (index, tensor) in tensors.iter().enumerate() {
            // Gradient scales differ by a factor of 100 between tensors, so that epsilon matters for some tensors.
            let scale = [1e-5, 1e-3, 1e-1][index % 3];
            let values = random.values(&[("", tensor.range.len(), true)], scale);
            gradients[tensor.range.clone()].copy_from_slice(&values);
        }
        state.write(Buffer::Gradients, 0, &gradients);
        let gradients = wide(gradients);
        let clip_divisor = l2_norm(&gradients).max(1.0);
        let updated = update(&mut state, settings, rate(updates), &mut SingleRank).unwrap();
        let ratios = updated.trust_ratios(&state);
        state.count_update();
        for tensor in &mut tensors {
            let own: Vec<f64> =
                gradients[tensor.range.clone()].iter().map(|gradient| gradient / clip_divisor).collect();
            let expected = other(tensor, &own, updates);
            let ratio = ratios.get(&tensor.name).copied().unwrap_or(1.0);
            assert!(
                (ratio / expected - 1.0).abs() < 1e-4,
                "{} has trust ratio {ratio}, expected {expected}",
                tensor.name
            );
        }
    }
    let difference = |tensor: &LambTensor| {
        let weights = wide(state.read(Buffer::Weights, tensor.range.clone()));
        let difference: Vec<f64> =
            weights.iter().zip(&tensor.weights).map(|(actual, expected)| actual - expected).collect();
        l2_norm(&difference) / l2_norm(&tensor.weights)
    };
    tensors.iter().map(difference).max_by(f64::total_cmp).unwrap()
}

#[test]
fn default_settings_match_nvidia_apex() {
    let error =
        max_weight_error(&Settings::default(), |_| RATE, |tensor, g, updates| tensor.step_apex(g, updates, false));
    assert!(error < 1e-5, "{error:e}");
    let everywhere = Settings { trust_undecayed: true, ..Settings::default() };
    let error = max_weight_error(&everywhere, |_| RATE, |tensor, g, updates| tensor.step_apex(g, updates, true));
    assert!(error < 1e-5, "use_nvlamb: {error:e}");
}

#[test]
fn bounded_ratio_without_bias_correction_matches_deepspeed() {
    let settings = Settings {
        bias_correction: false,
        trust_undecayed: true,
        trust_ratio: Some([0.01, 10.0]),
        ..Settings::default()
    };
    let error = max_weight_error(&settings, deepspeed_rate, LambTensor::step_deepspeed);
    assert!(error < 1e-5, "{error:e}");
}
