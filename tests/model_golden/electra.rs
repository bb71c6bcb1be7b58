//! Replaced-token detection with given drawn tokens. tests/golden/make_electra.py wrote the golden values.

use lambert_config::run::{Family, Model, Precision};
use lambert_dataset::random::Key;
use lambert_plan::objectives::REPLACED_TOKENS;
use lambert_worker::kernels::Kernels;
use lambert_worker::model::input::Input;
use lambert_worker::objective::{GeneratedTokens, Pass, PassInput, PassOutput};
use safetensors::SafeTensors;
use serde_json::Value;
use tch::Tensor;

use super::{Golden, bf16_is_close, losses_and_gradients};

/// Golden models: a generator of the same width as the embeddings, and one with projections of the embeddings.
const TESTED: [(&str, &[u8]); 2] = [
    ("detection", include_bytes!("../golden/electra/detection.safetensors")),
    ("detection-projected", include_bytes!("../golden/electra/detection-projected.safetensors")),
];

/// Puts given tokens in the places of the masked tokens.
struct GivenTokens(Vec<i64>);

impl PassInput for GivenTokens {
    fn make(&self, input: &Input, _: &[PassOutput], _: &dyn Kernels, _: Key) -> Input {
        GeneratedTokens::replace(input, &Tensor::from_slice(&self.0))
    }
}

/// Replaces the input of the discriminator.
pub fn with_drawn_tokens(mut passes: Vec<Pass>, drawn: &[i64]) -> Vec<Pass> {
    let discriminator = passes.pop().unwrap();
    passes.push(discriminator.with_input(Box::new(GivenTokens(drawn.to_vec()))));
    passes
}

fn read(bytes: &[u8]) -> Golden {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    let mut model = serde_json::to_value(Family::Electra.model()).unwrap();
    let keys: Value = serde_json::from_str(&metadata["model"]).unwrap();
    for (key, value) in keys.as_object().unwrap() {
        model[key] = value.clone();
    }
    let golden = Golden::read(serde_json::from_value(model).unwrap(), metadata["vocabulary"].parse().unwrap(), bytes);
    Golden { replaced_tokens: Some(serde_json::from_str(&metadata["replaced_tokens"]).unwrap()), ..golden }
}

#[test]
fn detection_equals_transformers() {
    for (name, bytes) in TESTED {
        let golden = read(bytes);
        losses_and_gradients(name, &golden, true);
        let padded = Golden { model: Model { pad_vocabulary_to: 64, ..golden.model.clone() }, ..read(bytes) };
        losses_and_gradients(name, &padded, true);
        for recompute in [false, true] {
            let totals = golden.step(recompute).0.of(REPLACED_TOKENS);
            let loss = totals.mean_loss().unwrap() - f64::from(golden.floats["rtd_loss"][0]);
            assert!(loss.abs() < 1e-5, "{name}: {loss:e}");
            let counts = &golden.integers["detection"];
            let ours = [totals.correct, totals.detection.targets, totals.detection.predictions, totals.detection.both];
            assert_eq!(ours.map(|count| count as i64), counts[..], "{name}");
        }
    }
}

#[test]
fn detection_in_bf16_is_close_to_transformers() {
    for (name, bytes) in TESTED {
        let golden = read(bytes);
        let model = Model { precision: Precision::Bf16, ..golden.model.clone() };
        bf16_is_close(name, &Golden { model, ..golden }, 0.05);
    }
}
