//! Tests of optimizer updates: every implementation compared with the formulas in f64 and with the host.

mod cross_entropy;
mod gate;
mod golden_updates;
mod operations;
mod relative;
mod residual_norm;
mod rotary;
mod sample;
mod soft_targets;

use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::Optimizer as Settings;
use tch::{Device, Tensor};

use super::cuda::Emulator;
use super::*;
use crate::optim;

/// Name, number of elements, and true if weight decay applies. The initial value of `e.weight` is zero. `f.weight`
/// spans several chunks.
pub const SHAPES: Shapes<6> = [
    ("a.weight", 64 * 33, true),
    ("b.bias", 33, false),
    ("c.LayerNorm.weight", 7, false),
    ("d.weight", 1, true),
    ("e.weight", 50, true),
    ("f.weight", (2 << 16) + 11, true),
];
/// Number of leading parameters that fit in one chunk.
const SMALL: usize = 5;
const ZERO: usize = 4;

pub type Shapes<const N: usize> = [(&'static str, usize, bool); N];
type Shape = (&'static str, usize, bool);

fn ranges(shapes: &[Shape]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |(_, count, _): &Shape| {
        end += count;
        end - count..end
    };
    shapes.iter().map(range).collect()
}

fn elements(shapes: &[Shape]) -> usize {
    shapes.iter().map(|(_, count, _)| count).sum()
}

pub fn update<'a>(
    shapes: &[Shape],
    settings: &Settings,
    rate: f64,
    updates: u64,
    norm: &'a Tensor,
) -> OptimizerUpdate<'a> {
    let rules = shapes.iter().map(|(_, _, decays)| optim::param_update(settings, *decays, updates, rate));
    OptimizerUpdate {
        kind: settings.kind,
        clip_norm: settings.clip_norm,
        trust_ratio: settings.trust_ratio,
        norm,
        parameters: ranges(shapes).into_iter().zip(rules).collect(),
    }
}

/// Optimizer state updated by the plain formulas in f64.
struct FormulaState {
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl FormulaState {
    /// Applies one update and returns the step size of each parameter.
    fn step(&mut self, settings: &Settings, shapes: &[Shape], gradients: &[f64], t: i32, rate: f64) -> Vec<f64> {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        let divide = if norm > settings.clip_norm { norm / settings.clip_norm } else { 1.0 };
        let corrects = settings.bias_correction && settings.kind != OptimizerKind::AdamBert;
        let corrected = |beta: f64| if corrects { 1.0 - beta.powi(t) } else { 1.0 };
        let (inv_bias_correction1, inv_bias_correction2) = (corrected(settings.beta1), corrected(settings.beta2));
        let (mut first, mut rates) = (0, Vec::new());
        for &(_, count, decays) in shapes {
            let range = first..first + count;
            first += count;
            let decay = if decays { settings.weight_decay } else { 0.0 };
            let direction = |i: usize| {
                let g = gradients[i] / divide;
                self.first[i] = settings.beta1 * self.first[i] + (1.0 - settings.beta1) * g;
                self.second[i] = settings.beta2 * self.second[i] + (1.0 - settings.beta2) * g * g;
                let (m, v) = (self.first[i] / inv_bias_correction1, self.second[i] / inv_bias_correction2);
                m / (v.sqrt() + settings.eps) + decay * self.weights[i]
            };
            let directions: Vec<f64> = range.clone().map(direction).collect();
            let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
            let (p, u) = (length(&self.weights[range.clone()]), length(&directions));
            let uses_trust_ratio = settings.kind == OptimizerKind::Lamb && (decays || settings.trust_undecayed);
            let ratio = if p > 0.0 && u > 0.0 { p / u } else { 1.0 };
            let bounded =
                settings.trust_ratio.map_or(ratio, |[min_ratio, max_ratio]| ratio.max(min_ratio).min(max_ratio));
            let relative: f64 = range
                .clone()
                .map(|i| {
                    let root = (self.second[i] / inv_bias_correction2).sqrt().max(settings.eps);
                    (gradients[i] / divide / root).powi(2)
                })
                .sum();
            let ratio = match settings.kind {
                OptimizerKind::StableAdamw => 1.0 / (relative / count as f64).sqrt().max(1.0),
                _ if uses_trust_ratio => bounded,
                _ => 1.0,
            };
            for (weight, direction) in self.weights[range].iter_mut().zip(directions) {
                *weight -= rate * ratio * direction;
            }
            rates.push(rate * ratio);
        }
        rates
    }
}

pub struct RandomValues(lambert_dataset::random::Rng);

impl RandomValues {
    pub fn new(seed: u64) -> Self {
        Self(Key::new(seed).rng())
    }

    pub fn values(&mut self, shapes: &[Shape], scale: f64) -> Vec<f32> {
        (0..elements(shapes)).map(|_| ((self.0.unit_f64() - 0.5) * scale) as f32).collect()
    }

    pub fn weights(&mut self, shapes: &[Shape]) -> Vec<f32> {
        let mut weights = self.values(shapes, 0.1);
        weights[ranges(shapes)[ZERO].clone()].fill(0.0);
        weights
    }
}

/// Weights, gradients, both moments, and the bf16 copy of the weights, on a device.
struct Tensors([Tensor; 5]);

impl Tensors {
    /// Creates a state with zero moments.
    fn new(kernels: &dyn Kernels, weights: &[f32]) -> Self {
        let zeros = || kernels.zeros(&[weights.len() as i64], Kind::Float);
        let values = kernels.upload(Values::F32(weights));
        let bf16_weights = values.to_kind(Kind::BFloat16);
        Self([values, zeros(), zeros(), zeros(), bf16_weights])
    }

    fn update(
        &mut self,
        kernels: &dyn Kernels,
        gradients: &[f32],
        update: impl Fn(&Tensor) -> OptimizerUpdate<'_>,
    ) -> Option<Vec<f64>> {
        let [weights, scratch, first, second, bf16_weights] = &mut self.0;
        *scratch = kernels.upload(Values::F32(gradients));
        let norm = kernels.norm(scratch);
        let mut buffers = StateBuffers {
            weights,
            gradients: scratch,
            first_moments: first,
            second_moments: second,
            bf16_weights: Some(bf16_weights),
        };
        let rates = kernels.update(&mut buffers, &update(&norm));
        rates.map(|rates| kernels.fetch(&rates.to_kind(Kind::Double)))
    }

    /// Weights and both moments, in host memory.
    fn values(&self) -> [Vec<f32>; 3] {
        assert_eq!(self.0[4], self.0[0].to_kind(Kind::BFloat16), "bf16 copy of the weights");
        [0, 2, 3].map(|index| Vec::try_from(self.0[index].to_device(Device::Cpu)).unwrap())
    }
}

/// Largest relative error of a parameter after `steps` updates.
fn error_from_formulas(kernels: &dyn Kernels, shapes: &[Shape], settings: &Settings, steps: u64) -> f64 {
    let mut random = RandomValues::new(5);
    let weights = random.weights(shapes);
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let zeros = vec![0.0; weights.len()];
    let mut formulas = FormulaState { weights: wide(&weights), first: zeros.clone(), second: zeros };
    let mut tensors = Tensors::new(kernels, &weights);
    for t in 1..=steps {
        // Every third gradient is too small to be clipped.
        let gradients = random.values(shapes, if t % 3 == 0 { 1e-4 } else { 1.0 });
        let rate = 1e-2 / (t as f64).sqrt();
        let expected = formulas.step(settings, shapes, &wide(&gradients), t as i32, rate);
        let rates = tensors.update(kernels, &gradients, |norm| update(shapes, settings, rate, t, norm));
        assert_eq!(rates.is_some(), matches!(settings.kind, OptimizerKind::Lamb | OptimizerKind::StableAdamw));
        for (rate, expected) in rates.iter().flatten().zip(expected) {
            assert!((rate / expected - 1.0).abs() < 1e-4, "step size {rate}, expected {expected}");
        }
    }
    let [weights, ..] = tensors.values();
    let worst = |range: Range<usize>| {
        let difference = |i: usize| (f64::from(weights[i]) - formulas.weights[i]).powi(2);
        let size: f64 = range.clone().map(|i| formulas.weights[i].powi(2)).sum();
        (range.map(difference).sum::<f64>() / size).sqrt()
    };
    ranges(shapes).into_iter().map(worst).max_by(f64::total_cmp).unwrap()
}

fn settings() -> Vec<(&'static str, Settings)> {
    let lamb = Settings::default();
    let adamw = Settings { kind: OptimizerKind::Adamw, ..lamb.clone() };
    let uncorrected = |settings: &Settings| Settings { bias_correction: false, ..settings.clone() };
    vec![
        ("LAMB without bias correction", uncorrected(&lamb)),
        (
            "LAMB, trust ratio bounded and for all",
            Settings { trust_undecayed: true, trust_ratio: Some([0.02, 0.05]), ..lamb.clone() },
        ),
        ("AdamW without bias correction", uncorrected(&adamw)),
        ("Adam of the original BERT", Settings { kind: OptimizerKind::AdamBert, ..lamb.clone() }),
        ("StableAdamW", Settings { kind: OptimizerKind::StableAdamw, ..lamb.clone() }),
        ("LAMB", lamb),
        ("AdamW", adamw),
    ]
}

fn reference() -> Reference {
    // Parallel tests would compete for the libtorch threads.
    tch::set_num_threads(1);
    Reference::new(Device::Cpu)
}

/// CUDA kernels, emulated on the CPU.
pub fn emulated() -> Cuda<Emulator> {
    Cuda::new(Arc::default())
}

#[test]
fn updates_match_f64_formulas() {
    for (name, settings) in settings() {
        let error = error_from_formulas(&Host, &SHAPES[..SMALL], &settings, 1000);
        println!("{name} over 1,000 steps: relative error {error:.1e}");
        assert!(error < 1e-5, "{name}: {error:e}");
        let error = error_from_formulas(&Host, &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} in chunks: {error:e}");
        let error = error_from_formulas(&reference(), &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} reference: {error:e}");
        let error = error_from_formulas(&emulated(), &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} emulated CUDA: {error:e}");
    }
}

/// Largest difference between the weights and moments of `kernels` and those of the host, after `steps` updates.
fn max_difference_from_host(kernels: &dyn Kernels, shapes: &[Shape], settings: &Settings, steps: u64) -> f32 {
    let mut random = RandomValues::new(8);
    let weights = random.weights(shapes);
    let (mut host, mut other) = (Tensors::new(&Host, &weights), Tensors::new(kernels, &weights));
    for t in 1..=steps {
        let gradients = random.values(shapes, if t % 3 == 0 { 1e-4 } else { 1.0 });
        let rate = 1e-2 / (t as f64).sqrt();
        host.update(&Host, &gradients, |norm| update(shapes, settings, rate, t, norm));
        other.update(kernels, &gradients, |norm| update(shapes, settings, rate, t, norm));
    }
    let (host, other) = (host.values().concat(), other.values().concat());
    host.iter().zip(other).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap()
}

#[test]
fn updates_match_host() {
    let check = |name: &str, settings: &Settings| {
        let error = max_difference_from_host(&reference(), &SHAPES, settings, 20);
        assert!(error < 1e-6, "{name} reference: {error:e}");
        let error = max_difference_from_host(&emulated(), &SHAPES, settings, 20);
        assert!(error < 1e-6, "{name} emulated CUDA: {error:e}");
        let error = max_difference_from_host(&emulated(), &SHAPES[..SMALL], settings, 1000);
        println!("{name} emulated CUDA over 1,000 steps: {error:.1e}");
        assert!(error < 1e-6, "{name} emulated CUDA over 1,000 steps: {error:e}");
    };
    std::thread::scope(|scope| {
        for (name, settings) in settings() {
            scope.spawn(move || check(name, &settings));
        }
    });
}

#[test]
fn non_finite_gradients_leave_state_unchanged() {
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        for (name, settings) in settings() {
            let mut random = RandomValues::new(9);
            let mut tensors = Tensors::new(kernels, &random.weights(&SHAPES));
            let finite = random.values(&SHAPES, 1.0);
            tensors.update(kernels, &finite, |norm| update(&SHAPES, &settings, 1e-2, 1, norm));
            let before = tensors.values();
            for bad_value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut gradients = finite.clone();
                gradients[1234] = bad_value;
                tensors.update(kernels, &gradients, |norm| update(&SHAPES, &settings, 1e-2, 2, norm));
                assert_eq!(tensors.values(), before, "{name}: {bad_value}");
            }
            tensors.update(kernels, &finite, |norm| update(&SHAPES, &settings, 1e-2, 2, norm));
            assert_ne!(tensors.values(), before, "{name}");
        }
    }
}

#[test]
fn frozen_parameters_stay_unchanged() {
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        let mut random = RandomValues::new(7);
        let (start, gradients) = (random.weights(&SHAPES), random.values(&SHAPES, 1.0));
        let mut tensors = Tensors::new(kernels, &start);
        tensors.update(kernels, &gradients, |norm| {
            let mut update = update(&SHAPES, &Settings::default(), 1e-2, 1, norm);
            // First, middle and last parameter.
            let frozen = [0, 2, 5].map(|number| ranges(&SHAPES)[number].clone());
            update.parameters.retain(|(range, _)| !frozen.contains(range));
            update
        });
        let [weights, first, _] = tensors.values();
        for (number, range) in ranges(&SHAPES).into_iter().enumerate() {
            let same = weights[range.clone()] == start[range.clone()];
            assert_eq!(same, [0, 2, 5].contains(&number), "{}", SHAPES[number].0);
            assert_eq!(first[range].iter().all(|moment| *moment == 0.0), same);
        }
    }
}
