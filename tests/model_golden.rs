//! Compares the model and its options with Hugging Face transformers. tests/golden/make_bert.py wrote the golden
//! values. Inputs include padded rows and rows with a single segment.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashMap;
use std::sync::Arc;

use lambert_config::run::{self, Activation, Attention, Family, Model, Norm, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::objectives::{MASKED_LANGUAGE, PAIR};
use lambert_worker::data::{GlobalBatch, MicroBatch};
use lambert_worker::kernels::Host;
use lambert_worker::model::input::Input;
use lambert_worker::model::{Dropout, Encoder};
use lambert_worker::objective::Objective;
use lambert_worker::objective::totals::ObjectiveTotals;
use lambert_worker::state::{Buffer, Parameters, TrainState};
use lambert_worker::torch;
use lambert_worker::train::step;
use safetensors::SafeTensors;
use tch::Tensor;

const TINY: Model = Model {
    family: Family::Bert,
    layers: 2,
    hidden: 32,
    heads: 4,
    intermediate: 64,
    positions: 24,
    precision: Precision::Fp32,
    norm: Norm::Post,
    activation: Activation::Gelu,
    tied_decoder: true,
    pad_vocabulary_to: 1,
    dropout: 0.0,
    attention_dropout: None,
    attention: Attention::Auto,
    initializer_range: 0.02,
    layer_norm_eps: 1e-12,
};

/// Vocabulary size of the small models.
const PIECES: usize = 96;

/// Returns all golden models with their names.
fn golden() -> [(&'static str, Golden); 5] {
    let padded = Model { pad_vocabulary_to: 100, ..TINY };
    let padded_untied = Model { activation: Activation::GeluTanh, tied_decoder: false, pad_vocabulary_to: 64, ..TINY };
    let untied = Model { activation: Activation::GeluTanh, tied_decoder: false, ..TINY };
    let pre = Model { norm: Norm::Pre, ..TINY };
    [
        ("bert-tiny", Golden::read(TINY, include_bytes!("golden/bert-tiny.safetensors"))),
        ("bert-tiny with 4 rows more", Golden::read(padded, include_bytes!("golden/bert-tiny.safetensors"))),
        (
            "bert-untied-tanh with 32 rows more",
            Golden::read(padded_untied, include_bytes!("golden/bert-untied-tanh.safetensors")),
        ),
        ("bert-untied-tanh", Golden::read(untied, include_bytes!("golden/bert-untied-tanh.safetensors"))),
        ("megatron-bert", Golden::read(pre, include_bytes!("golden/megatron-bert.safetensors"))),
    ]
}

struct Golden {
    model: Model,
    pieces: usize,
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
        Self { model, pieces: PIECES, floats, integers }
    }

    fn batch(&self) -> MicroBatch {
        let integers = |name: &str| self.integers[name].iter().map(|value| *value as i32).collect::<Vec<i32>>();
        let (ids, lengths) = (integers("ids"), integers("lengths"));
        let width = ids.len() / lengths.len();
        let second = |row: &[i32]| row.iter().position(|segment| *segment == 1).unwrap_or(width) as i32;
        MicroBatch {
            sample_indices: (0..lengths.len() as u64).collect(),
            rows: lengths.len(),
            seq_len: width,
            ids,
            segment_b_starts: integers("segments").chunks(width).map(second).collect(),
            lengths,
            positions: integers("positions"),
            labels: integers("labels"),
            pair_labels: integers("pair"),
            digest: 0,
            loss_scales: Vec::new(),
        }
    }

    /// Returns the model with the golden weights. Panics if the tensor names differ. Padding rows of the vocabulary get
    /// large weights. A model that did not mask these rows would predict them.
    fn model(&self) -> Parameters {
        let parameters =
            Parameters::zeros(Arc::new(Host), Architecture::new(&self.model, self.model.layers, self.pieces));
        let theirs = self.floats.keys().filter(|name| name.starts_with("weight:")).count();
        assert_eq!(theirs, parameters.specs().len(), "the number of parameters differs");
        for spec in parameters.specs() {
            let mut weights = self.floats[&format!("weight:{}", spec.name)].clone();
            weights.resize(spec.count(), 3.0);
            parameters.write(spec, &weights);
        }
        parameters
    }
}

fn worst(ours: &Tensor, golden: &[f32]) -> f64 {
    let ours: Vec<f32> = Vec::try_from(ours.flatten(0, -1)).unwrap();
    assert_eq!(ours.len(), golden.len());
    ours.iter().zip(golden).map(|(a, b)| f64::from((a - b).abs())).max_by(f64::total_cmp).unwrap()
}

#[test]
fn logits_equal_transformers() {
    for (name, golden) in golden() {
        logits(name, &golden);
    }
}

fn logits(name: &str, golden: &Golden) {
    let parameters = golden.model();
    let bert = Encoder::new(&parameters, &golden.model);
    let batch = golden.batch();
    let (mlm, pair) = tch::no_grad(|| {
        let hidden = bert.forward(&Input::upload(&Host, &batch), Dropout::Off);
        (bert.heads.masked_language(&hidden, &Tensor::from_slice(&batch.positions)), bert.heads.pair(&hidden))
    });
    let (pieces, rows) = (golden.pieces as i64, mlm.size()[1]);
    let padding = mlm.narrow(1, pieces, rows - pieces);
    assert!(padding.numel() == 0 || padding.max().double_value(&[]) == f64::NEG_INFINITY, "padding is predicted");
    let mlm = worst(&mlm.narrow(1, 0, pieces), &golden.floats["mlm_logits"]);
    let pair = worst(&pair, &golden.floats["pair_logits"]);
    println!("{name}: largest difference of MLM logits {mlm:.1e}, of pair logits {pair:.1e}");
    assert!(mlm < 1e-4 && pair < 1e-4, "{name}: {mlm:e} {pair:e}");
}

/// Tests the published shapes. The variable LAMBERT_GOLDEN names the folder with the files of
/// tests/golden/make_bert.py. The test uses the matrix products of libtorch, and then those of oneDNN. With oneDNN,
/// gradients whose terms almost cancel (keys and queries of deep layers) are compared with float64 gradients.
#[test]
#[ignore = "needs the files that tests/golden/make_bert.py writes"]
fn published_shapes_equal_transformers() {
    let folder = std::env::var("LAMBERT_GOLDEN").expect("LAMBERT_GOLDEN is the folder with the golden files");
    let base = Model { dropout: 0.0, ..Model::default() };
    let large = Model { layers: 24, hidden: 1024, heads: 16, intermediate: 4096, ..base.clone() };
    for (size, model) in [("base", base), ("large", large)] {
        for (case, pieces) in [("uncased", 30522), ("cased", 28996)] {
            let name = format!("bert-{size}-{case}");
            let bytes = std::fs::read(format!("{folder}/{name}.safetensors")).unwrap();
            let golden = Golden { pieces, ..Golden::read(model.clone(), &bytes) };
            drop(bytes);
            for onednn in [false, true] {
                torch::allow_onednn(onednn);
                logits(&name, &golden);
                losses_and_gradients(&name, &golden, onednn);
            }
        }
    }
}

#[test]
fn losses_and_gradients_equal_transformers() {
    for (name, golden) in golden() {
        losses_and_gradients(name, &golden, true);
    }
}

/// bf16 has a relative precision of 0.4 %, so losses and gradients are close, but not equal. Also tests recomputed
/// activations.
#[test]
fn bf16_is_close_to_transformers() {
    for (name, golden) in golden() {
        let bf16 = Golden { model: Model { precision: Precision::Bf16, ..golden.model.clone() }, ..golden };
        for recompute in [false, true] {
            let (totals, gradients) = bf16.step(recompute);
            let mlm = totals.of(MASKED_LANGUAGE).mean_loss().unwrap() / f64::from(bf16.floats["mlm_loss"][0]) - 1.0;
            let pair = totals.of(PAIR).mean_loss().unwrap() / f64::from(bf16.floats["pair_loss"][0]) - 1.0;
            let (mut difference, mut size) = (0.0, 0.0);
            let all = gradients.read(Buffer::Gradients, 0..gradients.elements());
            for spec in gradients.parameters.specs() {
                let theirs = &bf16.floats[&format!("gradient:{}", spec.name)];
                for (ours, theirs) in all[spec.range()].iter().zip(theirs) {
                    difference += f64::from(ours - theirs).powi(2);
                    size += f64::from(*theirs).powi(2);
                }
            }
            let relative = (difference / size).sqrt();
            println!("{name}: bf16 moves the losses by {mlm:.1e} and {pair:.1e}, gradients by {relative:.1e}");
            assert!(mlm.abs() < 0.01 && pair.abs() < 0.01, "{name}: {mlm} {pair}");
            assert!((1e-4..0.03).contains(&relative), "{name}: {relative}");
        }
    }
}

impl Golden {
    /// Losses and gradients of the golden batch.
    fn step(&self, recompute: bool) -> (ObjectiveTotals, TrainState) {
        let mut state = TrainState::new(self.model());
        let objective =
            Objective::new(&state.parameters, &self.model, &run::Objective::default()).recomputing(recompute);
        let micro_batch = self.batch();
        let batch = GlobalBatch {
            epoch: 0,
            sample_range: 0..micro_batch.rows as u64,
            lengths: micro_batch.lengths.iter().map(|length| *length as u16).collect(),
            padding: 0,
            imbalance: 1.0,
            masked_tokens: micro_batch.labels.len() as u64,
            micro_batches: vec![micro_batch],
            shard_micro_batches: vec![1],
        };
        let computed =
            step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
        let (totals, _) = computed.fetch(&Host, &state.gradient_norm()).unwrap();
        (totals, state)
    }
}

fn losses_and_gradients(name: &str, golden: &Golden, onednn: bool) {
    let (totals, state) = golden.step(false);
    let mlm = totals.of(MASKED_LANGUAGE).mean_loss().unwrap() - f64::from(golden.floats["mlm_loss"][0]);
    let pair = totals.of(PAIR).mean_loss().unwrap() - f64::from(golden.floats["pair_loss"][0]);
    assert!(mlm.abs() < 1e-4 && pair.abs() < 1e-4, "{name}: {mlm:e} {pair:e}");
    let (mut largest, mut key_bias, mut undetermined) = (0.0_f64, 0.0_f64, Vec::new());
    let gradients = state.read(Buffer::Gradients, 0..state.elements());
    for spec in state.parameters.specs() {
        let theirs = &golden.floats[&format!("gradient:{}", spec.name)];
        let (ours, padding) = gradients[spec.range()].split_at(theirs.len());
        assert!(padding.iter().all(|gradient| *gradient == 0.0), "{name}, {}: padding has gradients", spec.name);
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(a - b)));
        let size = norm(&mut theirs.iter().map(|value| f64::from(*value)));
        // The bias of the keys shifts all attention scores of a query equally, so its gradient is zero except for
        // rounding.
        let limit = if spec.name.ends_with("key.bias") { 1e-6 } else { 1e-4 * size };
        if let Some(exact) = golden.floats.get(&format!("gradient64:{}", spec.name))
            && difference > limit
            && onednn
        {
            // The difference is caused by rounding on both sides. Our gradient may be up to twice as far from the
            // float64 gradient as that of transformers.
            let far = |values: &[f32]| norm(&mut values.iter().zip(exact).map(|(a, b)| f64::from(a - b)));
            let (ours, theirs) = (far(ours), far(theirs));
            assert!(ours < 2.0 * theirs, "{name}, {}: {ours:e}, theirs {theirs:e}", spec.name);
            undetermined.push((ours / theirs, theirs / size));
            continue;
        }
        let idle = spec.name == "cls.predictions.bias" && !golden.model.tied_decoder;
        assert_eq!(size == 0.0, idle, "{name}, {}", spec.name);
        assert!(difference <= limit, "{name}, {}: {difference:e} of {size:e}", spec.name);
        match spec.name.ends_with("key.bias") {
            true => key_bias = key_bias.max(difference),
            false if !idle => largest = largest.max(difference / size),
            false => {}
        }
    }
    println!(
        "{name}: losses differ by {:.1e} and {:.1e}; gradients by {largest:.1e} of their norm at most, key biases' by \
         {key_bias:.1e}",
        mlm.abs(),
        pair.abs()
    );
    if !undetermined.is_empty() {
        let most = |pick: fn(&(f64, f64)) -> f64| undetermined.iter().map(pick).max_by(f64::total_cmp).unwrap();
        println!(
            "{name}: {} tensors that f32 does not determine to 1e-4 (transformers' are up to {:.1e} from float64): ours are at \
             most {:.2} times as far",
            undetermined.len(),
            most(|pair| pair.1),
            most(|pair| pair.0)
        );
    }
}
