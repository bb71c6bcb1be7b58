//! All weights in one flat buffer, all gradients in another; a parameter is a view of both.
//!
//! The buffers hold the parameters in the order of their names, so that "elements 1000 to 2000" means the same in every
//! process, checkpoint and world.

use lambert_config::run::{self, Norm};
use lambert_data_prep::random::Key;
use tch::{Device, Kind, Tensor};

use crate::torch;

/// A parameter's name (Hugging Face's), shape and place in the flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// As `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<i64>,
    /// Its first element in the flat buffers.
    pub first: usize,
    /// Its last rows that stand for no piece of the vocabulary.
    pub padding: usize,
    /// Whether it stays as it is for now, with its moments.
    pub frozen: bool,
}

impl Spec {
    /// Elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Its shape, as files have it.
    pub fn sizes(&self) -> Vec<usize> {
        self.shape.iter().map(|size| *size as usize).collect()
    }

    /// Its elements in the flat buffers.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count()
    }

    /// Weight decay (and LAMB's trust ratio) is for matrices: biases and layer normalisations have none.
    pub fn decays(&self) -> bool {
        !self.name.ends_with("bias") && !self.is_norm()
    }

    /// The encoder layer that it belongs to, and its name within the layer.
    pub fn layer(&self) -> Option<(usize, &str)> {
        let (layer, part) = self.name.strip_prefix("bert.encoder.layer.")?.split_once('.')?;
        Some((layer.parse().ok()?, part))
    }

    /// Whether it belongs to a layer normalisation (`ln` in Megatron-BERT's names).
    fn is_norm(&self) -> bool {
        self.name.contains("LayerNorm") || self.name.contains(".ln.")
    }
}

/// Every parameter of the pre-training model, in the order of the names.
pub fn specs(model: &run::Model, layers: usize, vocabulary: usize) -> Vec<Spec> {
    let (hidden, intermediate) = (model.hidden as i64, model.intermediate as i64);
    let rows = model.rows_of(vocabulary);
    let mut shapes: Vec<(String, Vec<i64>)> = vec![
        ("bert.embeddings.word_embeddings.weight".into(), vec![rows as i64, hidden]),
        ("bert.embeddings.position_embeddings.weight".into(), vec![model.positions as i64, hidden]),
        ("bert.embeddings.token_type_embeddings.weight".into(), vec![2, hidden]),
        ("cls.predictions.bias".into(), vec![rows as i64]),
    ];
    let mut linear = |name: String, from: i64, to: i64| {
        shapes.push((format!("{name}.weight"), vec![to, from]));
        shapes.push((format!("{name}.bias"), vec![to]));
    };
    linear("bert.pooler.dense".into(), hidden, hidden);
    linear("cls.predictions.transform.dense".into(), hidden, hidden);
    linear("cls.seq_relationship".into(), hidden, 2);
    for layer in (0..layers).map(|index| format!("bert.encoder.layer.{index}")) {
        for part in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
            linear(format!("{layer}.{part}"), hidden, hidden);
        }
        linear(format!("{layer}.intermediate.dense"), hidden, intermediate);
        linear(format!("{layer}.output.dense"), intermediate, hidden);
    }
    if !model.tied_decoder {
        shapes.push(("cls.predictions.decoder.weight".into(), vec![rows as i64, hidden]));
        // The bias beside it in transformers' model; `cls.predictions.bias` is there too, and idle.
        shapes.push(("cls.predictions.decoder.bias".into(), vec![rows as i64]));
    }
    for name in norms(model.norm, layers) {
        shapes.push((format!("{name}.weight"), vec![hidden]));
        shapes.push((format!("{name}.bias"), vec![hidden]));
    }
    shapes.sort();
    let mut first = 0;
    let place = |(name, shape): (String, Vec<i64>)| {
        let padding = if is_of_vocabulary(&name) { rows - vocabulary } else { 0 };
        let spec = Spec { name, shape, first, padding, frozen: false };
        first += spec.count();
        spec
    };
    shapes.into_iter().map(place).collect()
}

/// Whether a parameter has a row a piece.
fn is_of_vocabulary(name: &str) -> bool {
    name == "bert.embeddings.word_embeddings.weight"
        || name == "cls.predictions.bias"
        || name.starts_with("cls.predictions.decoder.")
}

/// The names of all layer normalisations.
fn norms(norm: Norm, layers: usize) -> Vec<String> {
    let (first, parts) = match norm {
        Norm::Post => ("bert.embeddings.LayerNorm", ["attention.output.LayerNorm", "output.LayerNorm"]),
        Norm::Pre => ("bert.encoder.ln", ["attention.ln", "ln"]),
    };
    let of_layers = (0..layers).flat_map(|index| parts.map(|part| format!("bert.encoder.layer.{index}.{part}")));
    [first, "cls.predictions.transform.LayerNorm"].into_iter().map(str::to_owned).chain(of_layers).collect()
}

/// Weights and gradients of a model.
pub struct Parameters {
    /// All weights, \[elements\], f32.
    pub values: Tensor,
    /// All gradients, \[elements\], f32; backward adds to them.
    pub gradients: Tensor,
    specs: Vec<Spec>,
    views: Vec<Tensor>,
}

impl Parameters {
    /// Zeros, ready to be filled through [`Parameters::values`].
    pub fn zeros(specs: Vec<Spec>) -> Self {
        let count = specs.last().map_or(0, |spec| spec.range().end) as i64;
        let values = Tensor::zeros([count], (Kind::Float, Device::Cpu));
        let gradients = Tensor::zeros([count], (Kind::Float, Device::Cpu));
        let view = |buffer: &Tensor, spec: &Spec| {
            buffer.narrow(0, spec.first as i64, spec.count() as i64).view(spec.shape.as_slice())
        };
        let views = specs
            .iter()
            .map(|spec| {
                let parameter = view(&values, spec).detach().set_requires_grad(true);
                torch::set_gradient(&parameter, &view(&gradients, spec));
                parameter
            })
            .collect();
        Self { values, gradients, specs, views }
    }

    /// The published initialisation: matrices from a normal distribution cut at two standard deviations, biases 0,
    /// layer normalisations 1. Each parameter is a pure function of the seed and its name. Rows that stand for no piece
    /// are 0, and stay so: no gradient reaches them.
    pub fn initialize(specs: Vec<Spec>, seed: u64, deviation: f64) -> Self {
        let mut parameters = Self::zeros(specs);
        let specs = parameters.specs.clone();
        let values = torch::floats_mut(&mut parameters.values);
        for spec in &specs {
            let elements = &mut values[spec.range()];
            if spec.decays() {
                fill_truncated_normal(elements, Key::new(seed).with_bytes(spec.name.as_bytes()), deviation);
                let width = elements.len() / spec.shape[0] as usize;
                let pieces = elements.len() - spec.padding * width;
                elements[pieces..].fill(0.0);
            } else if spec.is_norm() && spec.name.ends_with("weight") {
                elements.fill(1.0);
            }
        }
        parameters
    }

    /// Specs, all weights and all gradients at once, for an update in place.
    pub fn buffers_mut(&mut self) -> (&[Spec], &mut [f32], &mut [f32]) {
        (&self.specs, torch::floats_mut(&mut self.values), torch::floats_mut(&mut self.gradients))
    }

    /// Names, shapes and places, in the order of the names.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// Encoder layers.
    pub fn layers(&self) -> usize {
        self.specs.iter().filter_map(|spec| spec.layer()).map(|(layer, _)| layer + 1).max().unwrap_or(0)
    }

    /// Pieces of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        let bias = self.spec("cls.predictions.bias");
        bias.count() - bias.padding
    }

    /// Freezes the parameters of which `frozen` says so, and no others: backward leaves their gradients at zero, and updates
    /// pass them over.
    pub fn freeze(&mut self, frozen: impl Fn(&Spec) -> bool) {
        for (spec, view) in self.specs.iter_mut().zip(&mut self.views) {
            spec.frozen = frozen(spec);
            let _ = view.requires_grad_(!spec.frozen);
        }
    }

    /// A handle to one parameter. Asking for a name that no [`Spec`] has is a mistake in the model's code.
    pub fn tensor(&self, name: &str) -> Tensor {
        self.views[self.index(name)].shallow_clone()
    }

    /// Name, shape and place of one parameter.
    pub fn spec(&self, name: &str) -> &Spec {
        &self.specs[self.index(name)]
    }

    fn index(&self, name: &str) -> usize {
        let index = self.specs.binary_search_by(|spec| spec.name.as_str().cmp(name));
        index.unwrap_or_else(|_| panic!("the model has no parameter {name}"))
    }
}

/// By the polar method of Marsaglia; values beyond two deviations are drawn again.
fn fill_truncated_normal(elements: &mut [f32], key: Key, deviation: f64) {
    let mut rng = key.rng();
    let mut spare = None;
    let mut normal = move || {
        if let Some(value) = spare.take() {
            return value;
        }
        loop {
            let (x, y) = (2.0 * rng.unit_f64() - 1.0, 2.0 * rng.unit_f64() - 1.0);
            let square: f64 = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let scale = (-2.0 * square.ln() / square).sqrt();
                spare = Some(y * scale);
                return x * scale;
            }
        }
    };
    for element in elements {
        *element = loop {
            let value: f64 = normal();
            if value.abs() <= 2.0 {
                break (value * deviation) as f32;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> run::Model {
        run::Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..run::Model::default() }
    }

    #[test]
    fn specs_lie_end_to_end_and_match_the_formula() {
        let untied = run::Model { tied_decoder: false, ..tiny() };
        let pre = run::Model { norm: Norm::Pre, ..tiny() };
        let padded = run::Model { pad_vocabulary_to: 8, ..untied.clone() };
        for model in [tiny(), untied, pre, padded] {
            let mut end = 0;
            for spec in &specs(&model, 3, 50) {
                assert_eq!(spec.first, end, "{}", spec.name);
                end = spec.range().end;
            }
            assert_eq!(end as u64, lambert_config::flops::parameters(&model, 3, 50));
        }
    }

    #[test]
    fn rows_without_a_piece_are_zero_and_the_others_as_ever() {
        let model = run::Model { pad_vocabulary_to: 8, tied_decoder: false, ..tiny() };
        let plain = run::Model { pad_vocabulary_to: 1, ..model.clone() };
        let weights = |model: &run::Model, name: &str| {
            let mut parameters = Parameters::initialize(specs(model, 1, 50), 1, 0.02);
            let range = parameters.spec(name).range();
            torch::floats_mut(&mut parameters.values)[range].to_vec()
        };
        for name in ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"] {
            let (padded, plain) = (weights(&model, name), weights(&plain, name));
            assert_eq!((padded.len(), plain.len()), (56 * 8, 50 * 8));
            assert_eq!(padded[..plain.len()], plain);
            assert!(padded[plain.len()..].iter().all(|weight| *weight == 0.0));
        }
    }

    #[test]
    fn backward_accumulates_into_the_flat_buffer() {
        let mut parameters = Parameters::initialize(specs(&tiny(), 1, 50), 1, 0.02);
        let weight = parameters.tensor("bert.pooler.dense.weight");
        for _ in 0..2 {
            (&weight * 3.0).sum(Kind::Float).backward();
        }
        let spec = parameters.specs().iter().find(|spec| spec.name == "bert.pooler.dense.weight").unwrap().clone();
        let gradients = torch::floats_mut(&mut parameters.gradients);
        assert!(gradients[spec.range()].iter().all(|gradient| *gradient == 6.0));
        assert_eq!(gradients.iter().map(|gradient| *gradient as f64).sum::<f64>(), 6.0 * spec.count() as f64);
    }

    #[test]
    fn initial_weights_are_a_truncated_normal() {
        let mut elements = vec![0.0; 100_000];
        fill_truncated_normal(&mut elements, Key::new(1), 0.02);
        assert!(elements.iter().all(|value| value.abs() <= 0.04));
        let square = elements.iter().map(|value| f64::from(value * value)).sum::<f64>() / 1e5;
        // A normal cut at two deviations keeps a variance of 0.7737 of the whole one.
        assert!((square / 0.0004 - 0.7737).abs() < 0.01, "{square}");
        let mean = elements.iter().map(|value| f64::from(*value)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.0003, "{mean}");
    }
}
