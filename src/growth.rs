//! Progressive stacking: a training state with more layers, made from one with fewer. Nothing is drawn by chance, so that a
//! run that is killed before its first checkpoint with the new depth grows to the same bits again.

use std::ops::Range;

use lambert_config::run::{Growth, Model, Moments, Norm};

use crate::checkpoint::State;
use crate::model::Parameters;
use crate::model::parameters::{self, Spec};
use crate::torch::{self, TorchError};

/// Gives `state` the depth `layers`, if it has another. Embeddings, heads and old layers stay as they are; new layers are
/// made as `growth` says, and the weights, moments and counts of updates go with them.
pub fn grow(state: &mut State, model: &Model, growth: &Growth, layers: usize) -> Result<(), TorchError> {
    let from = state.parameters.layers();
    state.grown_from = (from != layers).then_some(from);
    if from == layers {
        return Ok(());
    }
    let vocabulary = state.parameters.vocabulary();
    let specs = parameters::specs(model, layers, vocabulary);
    let mut grown = torch::guard(|| Parameters::zeros(specs))?;
    let plan = Plan { growth, model, sources: growth.sources(from, layers), old: &state.parameters };
    let elements = grown.values.numel();
    let (mut first, mut second) = (vec![0.0; elements], vec![0.0; elements]);
    let specs = grown.specs().to_vec();
    let weights = torch::floats_mut(&mut grown.values);
    let old_weights = torch::floats(&state.parameters.values);
    for spec in &specs {
        let origin = plan.origin(spec);
        match origin.weights {
            Weights::Of(from) => weights[spec.range()].copy_from_slice(&old_weights[from]),
            Weights::All(value) => weights[spec.range()].fill(value),
        }
        if let Some((from, share)) = origin.moments {
            let scaled = |to: &mut [f32], old: &[f32], factor: f32| {
                to.iter_mut().zip(old).for_each(|(to, old)| *to = old * factor);
            };
            scaled(&mut first[spec.range()], &state.optimizer.first_moment[from.clone()], share);
            scaled(&mut second[spec.range()], &state.optimizer.second_moment[from], share * share);
        }
    }
    state.optimizer.first_moment = first;
    state.optimizer.second_moment = second;
    let born = state.optimizer.updates;
    let old = std::mem::take(&mut state.optimizer.born);
    for (layer, (source, new)) in plan.sources.iter().enumerate() {
        let birth = if *new && growth.moments() == Moments::Zero { Some(&born) } else { old.get(source) };
        state.optimizer.born.extend(birth.map(|birth| (layer, *birth)));
    }
    state.parameters = grown;
    Ok(())
}

/// Where each parameter of the deeper model comes from.
struct Plan<'a> {
    growth: &'a Growth,
    model: &'a Model,
    /// For each layer the one that it is made from, and whether it is new.
    sources: Vec<(usize, bool)>,
    old: &'a Parameters,
}

/// Where one parameter comes from, in the flat buffers of the model before.
struct Origin {
    /// Its weights.
    weights: Weights,
    /// Its moments, and what part of them is taken; zeros if `None`.
    moments: Option<(Range<usize>, f32)>,
}

enum Weights {
    /// Those of a parameter of the model before.
    Of(Range<usize>),
    /// All the same.
    All(f32),
}

impl Weights {
    /// Those of a normalisation that only normalises.
    fn plain(part: &str) -> Self {
        Self::All(if part.ends_with("weight") { 1.0 } else { 0.0 })
    }
}

impl Plan<'_> {
    fn origin(&self, spec: &Spec) -> Origin {
        let range = |name: &str| self.old.spec(name).range();
        let Some((layer, part)) = spec.layer() else {
            let range = range(&spec.name);
            return Origin { weights: Weights::Of(range.clone()), moments: Some((range, 1.0)) };
        };
        let (source, new) = self.sources[layer];
        let of = |layer: usize, part: &str| range(&format!("bert.encoder.layer.{layer}.{part}"));
        let moments = match self.growth.moments() {
            Moments::Copy => Some(1.0),
            Moments::Zero => (!new).then_some(1.0),
            Moments::Scale => Some(1.0 / self.sources.iter().filter(|(other, _)| *other == source).count() as f32),
        };
        let weights = match self.growth.identity {
            true => self.identity(layer, part, of),
            false => Weights::Of(of(source, part)),
        };
        Origin { weights, moments: moments.map(|share| (of(source, part), share)) }
    }

    /// The weights of a part of the deeper model if its new layers put out what goes in: their projections add nothing.
    /// With post-normalisation a sum is normalised behind each of them, which leaves alone what has been normalised and
    /// nothing else: so the gain and bias below a row of new layers are moved to its end, and all before have 1 and 0.
    fn identity(&self, layer: usize, part: &str, of: impl Fn(usize, &str) -> Range<usize>) -> Weights {
        let (source, new) = self.sources[layer];
        let is_new = |layer: usize| self.sources.get(layer).is_some_and(|(_, new)| *new);
        let inner = part.strip_prefix("attention.").unwrap_or(part);
        match (inner, inner == part) {
            ("output.dense.weight" | "output.dense.bias", _) if new => Weights::All(0.0),
            ("output.LayerNorm.weight" | "output.LayerNorm.bias", ends) if self.model.norm == Norm::Post => {
                let old = (0..=layer).rev().find(|below| !is_new(*below)).unwrap_or(0);
                match (new, is_new(layer + 1)) {
                    (true, false) if ends => Weights::Of(of(self.sources[old].0, part)),
                    (true, _) => Weights::plain(part),
                    (false, true) if ends => Weights::plain(part),
                    (false, _) => Weights::Of(of(source, part)),
                }
            }
            _ => Weights::Of(of(source, part)),
        }
    }
}

/// Freezes all but the new layers while a stage whose model had `from` layers before it has `done` of the steps in which
/// only these are trained; after them nothing is frozen.
pub fn freeze(parameters: &mut Parameters, growth: &Growth, from: Option<usize>, done: u64) {
    let Some(from) = from.filter(|_| done < growth.new_layers_only) else {
        return parameters.freeze(|_| false);
    };
    let sources = growth.sources(from, parameters.layers());
    let is_new = |spec: &Spec| spec.layer().is_some_and(|(layer, _)| sources.get(layer).is_some_and(|(_, new)| *new));
    parameters.freeze(|spec| !is_new(spec));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lambert_config::RunConfig;
    use lambert_config::run::Order;
    use tch::{Kind, Tensor};

    use super::*;
    use crate::data::MicroBatch;
    use crate::data::batch::MaskedSample;
    use crate::masking::Hidden;
    use crate::model::{Bert, Dropout};
    use crate::step;

    const PIECES: usize = 50;

    /// A state of a small model whose every element tells it from all others.
    fn state(norm: Norm, layers: usize) -> (State, Model) {
        let shape = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let model = Model { norm, pad_vocabulary_to: 8, ..shape };
        let config = RunConfig { model: model.clone(), ..RunConfig::default() };
        let parameters = Parameters::initialize(parameters::specs(&model, layers, PIECES), 1, 0.3);
        let mut state = State::new(&config, parameters);
        // The gains and biases of a new model are 1 and 0: trained ones are not.
        let specs = state.parameters.specs().to_vec();
        let weights = torch::floats_mut(&mut state.parameters.values);
        for spec in specs.iter().filter(|spec| spec.name.contains("LayerNorm")) {
            let rough = |(i, weight): (usize, &mut f32)| *weight += 0.3 * ((7 * i) as f32).sin();
            weights[spec.range()].iter_mut().enumerate().for_each(rough);
        }
        let numbers = |from: f32| (0..).map(move |i| from + i as f32);
        state.optimizer.first_moment.iter_mut().zip(numbers(1e5)).for_each(|(to, value)| *to = value);
        state.optimizer.second_moment.iter_mut().zip(numbers(3e5)).for_each(|(to, value)| *to = value);
        state.optimizer.updates = 70;
        (state, model)
    }

    /// Weights and both moments, by name.
    fn tensors(state: &State) -> BTreeMap<String, [Vec<f32>; 3]> {
        let values = torch::floats(&state.parameters.values);
        let (first, second) = (&state.optimizer.first_moment, &state.optimizer.second_moment);
        let all: [&[f32]; 3] = [values, first, second];
        let of = |spec: &Spec| all.map(|all| all[spec.range()].to_vec());
        state.parameters.specs().iter().map(|spec| (spec.name.clone(), of(spec))).collect()
    }

    /// Each tensor of the grown model against the old ones put together by hand: `made` says for each new layer which old
    /// one it is made from.
    fn check(order: Order, moments: Moments, made: &[usize], factor: impl Fn(usize) -> [f32; 2]) {
        let (mut state, model) = state(Norm::Post, 2);
        let before = tensors(&state);
        grow(&mut state, &model, &Growth { order, moments: Some(moments), ..Growth::default() }, made.len()).unwrap();
        assert_eq!(state.parameters.layers(), made.len());
        let mut expected = BTreeMap::new();
        for (name, tensors) in &before {
            let Some(rest) = name.strip_prefix("bert.encoder.layer.") else {
                expected.insert(name.clone(), tensors.clone());
                continue;
            };
            let (old, part) = rest.split_once('.').unwrap();
            for (layer, _) in made.iter().enumerate().filter(|(_, source)| source.to_string() == old) {
                let mut tensors = tensors.clone();
                for (moment, factor) in tensors[1..].iter_mut().zip(factor(layer)) {
                    moment.iter_mut().for_each(|value| *value *= factor);
                }
                expected.insert(format!("bert.encoder.layer.{layer}.{part}"), tensors);
            }
        }
        let after = tensors(&state);
        assert_eq!(after.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        after.iter().for_each(|(name, tensors)| assert!(*tensors == expected[name], "{name}"));
        assert_eq!(state.optimizer.updates, 70);
    }

    #[test]
    fn grown_models_are_what_one_would_put_together_by_hand() {
        check(Order::Stack, Moments::Copy, &[0, 1, 0, 1], |_| [1.0, 1.0]);
        check(Order::Stack, Moments::Copy, &[0, 1, 0, 1, 0], |_| [1.0, 1.0]);
        check(Order::Interleave, Moments::Copy, &[0, 0, 1, 1], |_| [1.0, 1.0]);
        check(Order::Stack, Moments::Zero, &[0, 1, 0, 1], |layer| if layer < 2 { [1.0, 1.0] } else { [0.0, 0.0] });
        check(Order::Interleave, Moments::Zero, &[0, 0, 0, 1, 1, 1], |layer| match layer {
            0 | 3 => [1.0, 1.0],
            _ => [0.0, 0.0],
        });
        check(Order::Stack, Moments::Scale, &[0, 1, 0, 1], |_| [0.5, 0.25]);
        check(Order::Stack, Moments::Scale, &[0, 1, 0], |layer| if layer == 1 { [1.0, 1.0] } else { [0.5, 0.25] });
    }

    /// Hidden states and MLM logits for a sample.
    fn answers(state: &State, model: &Model) -> (Tensor, Tensor) {
        let bert = Bert::new(&state.parameters, model, state.parameters.layers());
        let hidden = vec![Hidden { position: 1, label: 3 }];
        let sample =
            MaskedSample { ids: (5..17).collect(), segment_b_start: 6, pair_label: Some(1), hidden, factor: 1.0 };
        let batch = MicroBatch::new(&[0], 12, 0, &[sample]);
        tch::no_grad(|| {
            let hidden = bert.forward(&step::input(&batch), Dropout::Off);
            let logits = bert.heads.masked_language(&hidden, &Tensor::from_slice(&[1i64, 7]));
            (hidden, logits.narrow(1, 0, PIECES as i64))
        })
    }

    fn apart(one: &Tensor, other: &Tensor) -> f64 {
        let norm = |tensor: &Tensor| tensor.square().sum(Kind::Double).double_value(&[]).sqrt();
        norm(&(one - other)) / norm(one)
    }

    #[test]
    fn new_layers_that_begin_as_the_identity_change_no_answer() {
        for order in [Order::Stack, Order::Interleave] {
            for (norm, limit) in [(Norm::Pre, 0.0), (Norm::Post, 1e-5)] {
                let (mut grown, model) = state(norm, 2);
                let (hidden, logits) = answers(&grown, &model);
                grow(&mut grown, &model, &Growth { order, identity: true, ..Growth::default() }, 6).unwrap();
                let (deep_hidden, deep_logits) = answers(&grown, &model);
                let far = apart(&hidden, &deep_hidden).max(apart(&logits, &deep_logits));
                assert!(far <= limit, "{order:?} {norm:?}: {far:e}");
                let (mut copied, _) = state(norm, 2);
                grow(&mut copied, &model, &Growth { order, ..Growth::default() }, 6).unwrap();
                assert!(apart(&hidden, &answers(&copied, &model).0) > 0.01, "copies change the answers");
            }
        }
    }

    #[test]
    fn layers_without_moments_count_their_updates_anew() {
        let (mut state, model) = state(Norm::Post, 2);
        let growth = Growth { moments: Some(Moments::Zero), ..Growth::default() };
        grow(&mut state, &model, &growth, 4).unwrap();
        assert_eq!(state.optimizer.born, BTreeMap::from([(2, 70), (3, 70)]));
        state.optimizer.updates = 90;
        grow(&mut state, &model, &growth, 8).unwrap();
        assert_eq!(state.optimizer.born, [(2, 70), (3, 70), (4, 90), (5, 90), (6, 90), (7, 90)].into());
        let copy = Growth::default();
        grow(&mut state, &model, &copy, 16).unwrap();
        assert_eq!(state.optimizer.born[&10], 70, "a copy is as old as what it was made from");
    }
}
