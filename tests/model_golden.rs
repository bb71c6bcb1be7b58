//! The model against Hugging Face transformers' BertForPreTraining: the golden values were written by
//! tests/golden/make_bert.py. A padded row and a row of one segment are among the inputs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::collections::HashMap;

use lambert::data::{GlobalBatch, MicroBatch};
use lambert::model::{Bert, Dropout, Parameters, parameters};
use lambert::{step, torch};
use lambert_config::run::Model;
use lambert_data_prep::random::Key;
use safetensors::SafeTensors;
use tch::Tensor;

const GOLDEN: &[u8] = include_bytes!("golden/bert-tiny.safetensors");

struct Golden {
    floats: HashMap<String, Vec<f32>>,
    integers: HashMap<String, Vec<i64>>,
}

impl Golden {
    fn read() -> Self {
        let (mut floats, mut integers) = (HashMap::new(), HashMap::new());
        for (name, view) in SafeTensors::deserialize(GOLDEN).unwrap().iter() {
            let bytes = view.data();
            match view.dtype() {
                safetensors::Dtype::F32 => {
                    let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
                    floats.insert(name.to_owned(), values);
                }
                _ => {
                    let values = bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
                    integers.insert(name.to_owned(), values);
                }
            }
        }
        Self { floats, integers }
    }

    fn batch(&self) -> MicroBatch {
        MicroBatch {
            index: 0,
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
        let model = Model {
            layers: 2,
            hidden: 32,
            heads: 4,
            intermediate: 64,
            positions: 24,
            dropout: 0.0,
            ..Model::default()
        };
        let mut parameters = Parameters::zeros(parameters::specs(&model, 2, 96));
        let specs = parameters.specs().to_vec();
        let theirs = self.floats.keys().filter(|name| name.starts_with("weight:")).count();
        assert_eq!(theirs, specs.len(), "another number of parameters");
        let values = torch::floats_mut(&mut parameters.values);
        for spec in &specs {
            values[spec.range()].copy_from_slice(&self.floats[&format!("weight:{}", spec.name)]);
        }
        let bert = Bert::new(&parameters, &model, 2);
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
    let golden = Golden::read();
    let (_parameters, bert) = golden.model();
    let batch = golden.batch();
    let (mlm, pair) = tch::no_grad(|| {
        let hidden = bert.forward(&step::input(&batch), Dropout::Off);
        (bert.heads.masked_language(&hidden, &Tensor::from_slice(&batch.positions)), bert.heads.pair(&hidden))
    });
    let (mlm, pair) = (worst(&mlm, &golden.floats["mlm_logits"]), worst(&pair, &golden.floats["pair_logits"]));
    println!("largest difference of MLM logits {mlm:.1e}, of pair logits {pair:.1e}");
    assert!(mlm < 1e-4 && pair < 1e-4, "{mlm:e} {pair:e}");
}

#[test]
fn losses_and_gradients_equal_transformers() {
    let golden = Golden::read();
    let (mut parameters, bert) = golden.model();
    let micro_batch = golden.batch();
    let batch = GlobalBatch {
        epoch: 0,
        lengths: micro_batch.lengths.iter().map(|length| *length as u16).collect(),
        masked_tokens: micro_batch.labels.len() as u64,
        micro_batches: vec![micro_batch],
    };
    let totals = step::forward_backward(&bert, &mut parameters, &batch, (0.0, Key::new(1))).unwrap();
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
        assert!(difference <= limit, "{}: {difference:e} of {size:e}", spec.name);
    }
}
