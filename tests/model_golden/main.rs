//! Compares the models and their options with Hugging Face transformers.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bert;
mod electra;
mod families;
mod span_boundary;
mod student;

use std::collections::HashMap;
use std::sync::Arc;

use lambert_config::run::{self, Family, Model};
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Architecture, ModuleKind, Network};
use lambert_plan::objectives::{self, MASKED_LANGUAGE, PAIR};
use lambert_worker::data::span_targets::SpanTargets;
use lambert_worker::data::{GlobalBatch, MicroBatch};
use lambert_worker::kernels::Host;
use lambert_worker::model::input::Input;
use lambert_worker::model::{self, Dropout, Encoder};
use lambert_worker::objective::totals::ObjectiveTotals;
use lambert_worker::objective::{Objective, Teacher};
use lambert_worker::state::{Buffer, Parameters, TrainState};
use lambert_worker::train::step;
use safetensors::SafeTensors;
use tch::Tensor;

struct Golden {
    model: Model,
    /// Settings of the generator, if the values are of replaced-token detection.
    replaced_tokens: Option<run::ReplacedTokens>,
    /// Model of the teacher, if the values are of distillation.
    teacher: Option<Model>,
    pieces: usize,
    floats: HashMap<String, Vec<f32>>,
    integers: HashMap<String, Vec<i64>>,
}

impl Golden {
    fn read(model: Model, pieces: usize, bytes: &[u8]) -> Self {
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
        Self { model, replaced_tokens: None, teacher: None, pieces, floats, integers }
    }

    fn has_pair(&self) -> bool {
        self.integers.contains_key("pair")
    }

    fn pair_loss(&self) -> Option<f64> {
        self.floats.get("pair_loss").map(|loss| f64::from(loss[0]))
    }

    /// Weight of the span boundary loss; 0 without this loss.
    fn span_boundary_weight(&self) -> f64 {
        self.floats.get("span_boundary_weight").map_or(0.0, |weight| f64::from(weight[0]))
    }

    /// Objective with the losses of the golden values.
    fn objective(&self) -> run::Objective {
        let pair = if self.has_pair() { run::Pair::Nsp } else { run::Pair::None };
        let (replaced_tokens, span_boundary_weight) = (self.replaced_tokens.clone(), self.span_boundary_weight());
        let teacher = self.teacher.as_ref().map(|_| run::Teacher::default());
        run::Objective { pair, replaced_tokens, span_boundary_weight, teacher, ..run::Objective::default() }
    }

    fn batch(&self) -> MicroBatch {
        let integers = |name: &str| self.integers[name].iter().map(|value| *value as i32).collect::<Vec<i32>>();
        let (ids, lengths) = (integers("ids"), integers("lengths"));
        let width = ids.len() / lengths.len();
        let second = |row: &[i32]| row.iter().position(|segment| *segment == 1).unwrap_or(width) as i32;
        let batch = MicroBatch {
            layout: lambert_plan::batch_partition::Layout::Padded,
            sample_indices: (0..lengths.len() as u64).collect(),
            rows: lengths.len(),
            seq_len: width,
            ids,
            segment_b_starts: integers("segments").chunks(width).map(second).collect(),
            lengths,
            positions: integers("positions"),
            labels: integers("labels"),
            pair_labels: if self.has_pair() { integers("pair") } else { Vec::new() },
            span_targets: SpanTargets::default(),
            digest: 0,
            loss_scales: Vec::new(),
        };
        if self.span_boundary_weight() > 0.0 { batch.with_span_targets() } else { batch }
    }

    /// Returns the objective of a training step over `parameters`.
    fn trained(&self, parameters: &Parameters) -> Objective {
        let passes = Objective::passes_of(parameters, &self.model, &self.objective());
        let objective = Objective::from_passes(match self.integers.get("drawn") {
            Some(drawn) => electra::with_drawn_tokens(passes, drawn),
            None => passes,
        });
        objective.with_teacher(self.teacher().as_ref(), &self.objective())
    }

    /// Teacher with the golden weights. It computes a few tokens at a time.
    fn teacher(&self) -> Option<Teacher> {
        let model = self.teacher.as_ref()?;
        let heads = objectives::heads(&run::Objective { pair: run::Pair::None, ..run::Objective::default() });
        let network = Network::new(model, &heads, model.layers, self.pieces);
        let parameters = self.with_weights(network.into(), "teacher:");
        let chunk = 5 * model.padded_vocabulary(self.pieces) as i64;
        Some(Teacher { parameters, model: Teacher::model(model, &self.model), chunk })
    }

    fn architecture(&self) -> Architecture {
        let config =
            run::RunConfig { model: self.model.clone(), objective: self.objective(), ..run::RunConfig::default() };
        match self.replaced_tokens {
            Some(_) => Architecture::of_run(&config, self.model.layers, self.pieces),
            None => {
                let heads = objectives::heads(&config.objective);
                Network::new(&self.model, &heads, self.model.layers, self.pieces).into()
            }
        }
    }

    /// Returns the model with the golden weights. Panics if the tensor names differ. Padding rows of the vocabulary get
    /// large weights. A model that did not mask these rows would predict them.
    fn model(&self) -> Parameters {
        self.with_weights(self.architecture(), "weight:")
    }

    /// Parameters with the golden tensors that have this prefix.
    fn with_weights(&self, architecture: Architecture, prefix: &str) -> Parameters {
        let mut parameters = Parameters::zeros(Arc::new(Host), architecture);
        let theirs = self.floats.keys().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(theirs, parameters.specs().len(), "the number of parameters differs");
        for spec in parameters.specs() {
            let mut weights = self.floats[&format!("{prefix}{}", spec.name)].clone();
            weights.resize(spec.count(), 3.0);
            parameters.write(spec, &weights);
        }
        parameters.keep_bf16_copy(model::compute_dtype(&self.model));
        parameters
    }
}

fn is_key_bias(name: &str) -> bool {
    ["key.bias", "k_lin.bias", "key_proj.bias"].iter().any(|end| name.ends_with(end))
}

fn worst(ours: &Tensor, golden: &[f32]) -> f64 {
    let ours: Vec<f32> = Vec::try_from(ours.flatten(0, -1)).unwrap();
    assert_eq!(ours.len(), golden.len());
    ours.iter().zip(golden).map(|(a, b)| f64::from((a - b).abs())).max_by(f64::total_cmp).unwrap()
}

fn logits(name: &str, golden: &Golden) {
    let parameters = golden.model();
    let encoder = Encoder::new(&parameters, 0, &golden.model);
    let batch = golden.batch();
    let (mlm, pair) = tch::no_grad(|| {
        let input = Input::upload(&Host, &batch);
        let hidden = encoder.forward(&input, Dropout::Off);
        let pair = golden.has_pair().then(|| encoder.heads.pair(&input.first_tokens(&hidden)));
        (encoder.heads.masked_language(&hidden, &Tensor::from_slice(&batch.positions)).without_padding(), pair)
    });
    let (pieces, rows) = (golden.pieces as i64, mlm.size()[1]);
    let padding = mlm.narrow(1, pieces, rows - pieces);
    assert!(padding.numel() == 0 || padding.max().double_value(&[]) == f64::NEG_INFINITY, "padding is predicted");
    let mlm = worst(&mlm.narrow(1, 0, pieces), &golden.floats["mlm_logits"]);
    let pair = pair.map_or(0.0, |pair| worst(&pair, &golden.floats["pair_logits"]));
    println!("{name}: largest difference of MLM logits {mlm:.1e}, of pair logits {pair:.1e}");
    let limit = if golden.model.family == Family::Bert { 1e-4 } else { 1e-5 };
    assert!(mlm < limit && pair < limit, "{name}: {mlm:e} {pair:e}");
}

impl Golden {
    /// Losses and gradients of the golden batch.
    fn step(&self, recompute: bool) -> (ObjectiveTotals, TrainState) {
        let mut state = TrainState::new(self.model());
        let objective = self.trained(&state.parameters).recomputing(recompute);
        let micro_batch = self.batch();
        let batch = GlobalBatch {
            datasets: Vec::new(),
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
    let pair = golden.pair_loss().map_or(0.0, |loss| totals.of(PAIR).mean_loss().unwrap() - loss);
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
        let limit = if is_key_bias(&spec.name) { 1e-6 } else { 1e-4 * size };
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
        let idle = spec.id.module == ModuleKind::PredictionBias && !golden.model.tied_decoder;
        assert_eq!(size == 0.0, idle, "{name}, {}", spec.name);
        assert!(difference <= limit, "{name}, {}: {difference:e} of {size:e}", spec.name);
        match is_key_bias(&spec.name) {
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

/// Compares losses and gradients in bf16, with and without recomputed activations. `limit` is the maximum relative error of
/// the gradients.
fn bf16_is_close(name: &str, bf16: &Golden, limit: f64) {
    for recompute in [false, true] {
        let (totals, gradients) = bf16.step(recompute);
        let mlm = totals.of(MASKED_LANGUAGE).mean_loss().unwrap() / f64::from(bf16.floats["mlm_loss"][0]) - 1.0;
        let pair = bf16.pair_loss().map_or(0.0, |loss| totals.of(PAIR).mean_loss().unwrap() / loss - 1.0);
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
        assert!((1e-4..limit).contains(&relative), "{name}: {relative}");
    }
}
