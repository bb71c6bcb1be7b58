//! Loss curves of the other families. tests/golden/make_family_curves.py wrote the losses of transformers.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::{Family, Model, Objective, Optimizer, OptimizerKind};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::curve::{Curve, VOCABULARY, max_difference, train_from};
use crate::kernels::Host;
use crate::state::{ParamSpec, Parameters};

/// Largest absolute difference between two losses of the same step.
const LIMIT: f64 = 1e-4;

/// File written by tests/golden/make_family_curves.py.
#[derive(Deserialize)]
struct GoldenCurves {
    /// Standard deviation of the initial weights.
    deviation: f64,
    /// Highest learning rates.
    peaks: ByOptimizer<f64>,
    /// Curves by name.
    curves: BTreeMap<String, GoldenCurve>,
}

#[derive(Deserialize)]
struct GoldenCurve {
    /// Keys of `[model]`. The defaults of the others are those of the family.
    model: Map<String, Value>,
    losses: ByOptimizer<Curve>,
}

/// One value for each optimizer.
#[derive(Deserialize)]
struct ByOptimizer<T> {
    adamw: T,
    lamb: T,
}

impl GoldenCurve {
    fn config(&self, kind: OptimizerKind) -> RunConfig {
        let family = Family::deserialize(&self.model["family"]).unwrap();
        let mut keys = serde_json::to_value(family.model()).unwrap();
        keys.as_object_mut().unwrap().extend(self.model.clone());
        let model = Model::deserialize(keys).unwrap();
        let objective = Objective { pair: family.pair(), ..Objective::default() };
        RunConfig { model, objective, optimizer: Optimizer { kind, ..Optimizer::default() }, ..RunConfig::default() }
    }
}

/// Returns the initial weights of a parameter: uniformly distributed numbers, and gains near 1.
fn initial(spec: &ParamSpec, deviation: f64) -> Vec<f32> {
    let mut rng = Key::new(1).with_bytes(spec.name.as_bytes()).rng();
    let (limit, mean) = ((deviation * 3_f64.sqrt()) as f32, if spec.role.is_gain() { 1.0 } else { 0.0 });
    let mut unit = || (rng.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..spec.count()).map(|_| unit() * limit + mean).collect()
}

/// Trains each model with each optimizer, and compares the losses with those of the file.
fn compare(bytes: &[u8]) {
    let golden: GoldenCurves = serde_json::from_slice(bytes).unwrap();
    for (name, one) in &golden.curves {
        for (kind, theirs, peak) in [
            (OptimizerKind::Adamw, &one.losses.adamw, golden.peaks.adamw),
            (OptimizerKind::Lamb, &one.losses.lamb, golden.peaks.lamb),
        ] {
            let config = one.config(kind);
            let architecture = Architecture::new(&config.model, config.model.layers, VOCABULARY);
            let parameters = Parameters::zeros(Arc::new(Host), architecture);
            for spec in parameters.specs() {
                parameters.write(spec, &initial(spec, golden.deviation));
            }
            let (curve, _) = train_from(parameters, &config, peak);
            assert_eq!((curve.len(), theirs.len()), (50, 50));
            assert!(curve[49] < 0.8 * curve[0], "{name}, {kind:?}: learns nothing: {curve:?}");
            let difference = max_difference(&curve, theirs);
            println!(
                "{name}, {kind:?}: loss {:.4} to {:.4}; off transformers by {difference:.1e}",
                curve[0], curve[49]
            );
            assert!(difference < LIMIT, "{name}, {kind:?}: differs from transformers by {difference:e}");
        }
    }
}

#[test]
fn loss_curves_of_families_match_transformers() {
    compare(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/family_curves.json")));
}

/// Compares larger models. The variable LAMBERT_GOLDEN names a file of tests/golden/make_family_curves.py.
#[test]
#[ignore = "needs a file that tests/golden/make_family_curves.py writes"]
fn longer_curves_of_families_match_transformers() {
    let file = std::env::var("LAMBERT_GOLDEN").expect("LAMBERT_GOLDEN is the file with the golden losses");
    compare(&std::fs::read(file).unwrap());
}
