//! The model and its options against Hugging Face transformers: the golden values were written by
//! tests/golden/make_bert.py. A padded row and a row of one segment are among the inputs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::collections::HashMap;

use lambert::data::{GlobalBatch, MicroBatch};
use lambert::model::{Bert, Dropout, Parameters, parameters};
use lambert::{step, torch};
use lambert_config::run::{Activation, Model, Norm};
use lambert_data_prep::random::Key;
use safetensors::SafeTensors;
use tch::Tensor;

const TINY: Model = Model {
    layers: 2,
    hidden: 32,
    heads: 4,
    intermediate: 64,
    positions: 24,
    norm: Norm::Post,
    activation: Activation::Gelu,
    tied_decoder: true,
    dropout: 0.0,
    attention_dropout: None,
    initializer_range: 0.02,
    layer_norm_eps: 1e-12,
};

/// Every golden model: its name, its shape and options, its values.
fn golden() -> [(&'static str, Golden); 3] {
    let untied = Model { activation: Activation::GeluTanh, tied_decoder: false, ..TINY };
    let pre = Model { norm: Norm::Pre, ..TINY };
    [
        ("bert-tiny", Golden::read(TINY, include_bytes!("golden/bert-tiny.safetensors"))),
        ("bert-untied-tanh", Golden::read(untied, include_bytes!("golden/bert-untied-tanh.safetensors"))),
        ("megatron-bert", Golden::read(pre, include_bytes!("golden/megatron-bert.safetensors"))),
    ]
}

struct Golden {
    model: Model,
    floats: HashMap<String, Vec<f32>>,
    integers: HashMap<String, Vec<i64>>,
}

impl Golden {
    fn read(model: Model, bytes: &[u8]) -> Self {
        let (mut floats, mut integers) = (HashMap::new(), HashMap::new());
        for (name, view) in SafeTensors::deserialize(bytes).unwrap().iter() {
            let data = view.data();
            match view.dtype() {
                safetensors::Dtype::F32 => {
                    let values = data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
                    floats.insert(name.to_owned(), values);
                }
                _ => {
                    let values = data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
                    integers.insert(name.to_owned(), values);
                }
            }
        }
        Self { model, floats, integers }
    }

    fn batch(&self) -> MicroBatch {
        MicroBatch {
            samples: vec![0, 1],
            rows: 2,
            width: 16,
            ids: self.integers["ids"].clone(),
            segments: self.integers["segments"].clone(),
            lengths: self.integers["lengths"].iter().map(|length| *length as usize).collect(),
            positions: self.integers["positions"].clone(),
            labels: self.integers["labels"].clone(),
            pair_labels: self.integers["pair"].clone(),
            digest: 0,
        }
    }

    /// The model with the golden weights; its names are theirs, or this panics.
    fn model(&self) -> (Parameters, Bert) {
        let mut parameters = Parameters::zeros(parameters::specs(&self.model, 2, 96));
        let specs = parameters.specs().to_vec();
        let theirs = self.floats.keys().filter(|name| name.starts_with("weight:")).count();
        assert_eq!(theirs, specs.len(), "another number of parameters");
        let values = torch::floats_mut(&mut parameters.values);
        for spec in &specs {
            values[spec.range()].copy_from_slice(&self.floats[&format!("weight:{}", spec.name)]);
        }
        let bert = Bert::new(&parameters, &self.model, 2);
        (parameters, bert)
    }
}

fn worst(ours: &Tensor, golden: &[f32]) -> f64 {
    let ours = ours.contiguous();
    let ours = torch::floats(&ours);
    assert_eq!(ours.len(), golden.len());
    ours.iter().zip(golden).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

#[test]
fn logits_equal_transformers() {
    for (name, golden) in golden() {
        let (_parameters, bert) = golden.model();
        let batch = golden.batch();
        let (mlm, pair) = tch::no_grad(|| {
            let hidden = bert.forward(&step::input(&batch), Dropout::Off);
            (bert.heads.masked_language(&hidden, &Tensor::from_slice(&batch.positions)), bert.heads.pair(&hidden))
        });
        let (mlm, pair) = (worst(&mlm, &golden.floats["mlm_logits"]), worst(&pair, &golden.floats["pair_logits"]));
        println!("{name}: largest difference of MLM logits {mlm:.1e}, of pair logits {pair:.1e}");
        assert!(mlm < 1e-4 && pair < 1e-4, "{name}: {mlm:e} {pair:e}");
    }
}

#[test]
fn losses_and_gradients_equal_transformers() {
    for (name, golden) in golden() {
        losses_and_gradients(name, &golden);
    }
}

fn losses_and_gradients(name: &str, golden: &Golden) {
    let (mut parameters, bert) = golden.model();
    let micro_batch = golden.batch();
    let batch = GlobalBatch {
        epoch: 0,
        lengths: micro_batch.lengths.iter().map(|length| *length as u16).collect(),
        masked_tokens: micro_batch.labels.len() as u64,
        micro_batches: vec![micro_batch],
    };
    let totals = step::forward_backward(&bert, &mut parameters, &batch, Key::new(1)).unwrap();
    assert!((totals.mlm_loss / 5.0 - f64::from(golden.floats["mlm_loss"][0])).abs() < 1e-4);
    assert!((totals.pair_loss / 2.0 - f64::from(golden.floats["pair_loss"][0])).abs() < 1e-4);
    let gradients = torch::floats(&parameters.gradients);
    for spec in parameters.specs() {
        let (ours, theirs) = (&gradients[spec.range()], &golden.floats[&format!("gradient:{}", spec.name)]);
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(a - b)));
        let size = norm(&mut theirs.iter().map(|value| f64::from(*value)));
        // The keys' bias shifts all scores of a query alike: its gradient is zero but for rounding.
        let limit = if spec.name.ends_with("key.bias") { 1e-6 } else { 1e-4 * size };
        let idle = spec.name == "cls.predictions.bias" && !golden.model.tied_decoder;
        assert_eq!(size == 0.0, idle, "{name}, {}", spec.name);
        assert!(difference <= limit, "{name}, {}: {difference:e} of {size:e}", spec.name);
    }
}
