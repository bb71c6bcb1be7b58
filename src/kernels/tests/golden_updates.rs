//! Optimizer updates compared with other implementations (tests/golden/make_optimizers.py).

use lambert_config::run::{Optimizer as Settings, OptimizerKind};
use serde::Deserialize;

use super::{Tensors, emulated, reference, update};
use crate::kernels::{Host, Kernels};

#[derive(Deserialize)]
struct Golden {
    sizes: Vec<usize>,
    decays: Vec<bool>,
    peak: f64,
    rates: Vec<f64>,
    weights: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    decay_relative_to_peak: bool,
    /// Weights after the last update.
    weights: Vec<f32>,
}

#[test]
fn stable_adamw_matches_optimi() {
    let golden: Golden = serde_json::from_str(include_str!("../../../tests/golden/optimizers.json")).unwrap();
    let shapes: Vec<_> = golden.sizes.iter().zip(&golden.decays).map(|(size, decays)| ("", *size, *decays)).collect();
    for case in &golden.cases {
        let settings = Settings {
            kind: OptimizerKind::StableAdamw,
            beta2: 0.98,
            clip_norm: 0.0,
            decay_relative_to_peak: case.decay_relative_to_peak,
            ..Settings::default()
        };
        let settings = settings.of_stage(golden.peak);
        for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
            let mut tensors = Tensors::new(kernels, &golden.weights);
            let mut least = f64::INFINITY;
            for ((gradients, rate), t) in golden.gradients.iter().zip(&golden.rates).zip(1..) {
                let sizes = tensors.update(kernels, gradients, |norm| update(&shapes, &settings, *rate, t, norm));
                least = sizes.unwrap().into_iter().fold(least, |least, size| least.min(size / rate));
            }
            assert!(least < 0.5, "{}: no update was reduced", case.name);
            let [weights, ..] = tensors.values();
            let differences = weights.iter().zip(&case.weights).map(|(actual, expected)| (actual - expected).abs());
            let error = differences.max_by(f32::total_cmp).unwrap();
            assert!(error < 1e-6, "{}: {error:e}", case.name);
        }
    }
}
