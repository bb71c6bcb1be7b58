//! Progressive stacking: a training state with more layers, made from one with fewer. Nothing is drawn by chance, so that a
//! run that is killed before its first checkpoint with the new depth grows to the same bits again.

use std::ops::Range;

use lambert_config::run::{Growth, Moments};
use lambert_plan::architecture::{Architecture, Role, TensorId};

use crate::state::{Buffer, Parameters, Spec, TrainState};
use crate::torch::{self, TorchError};

/// Gives `state` the depth of `architecture`, if it has another. Embeddings, heads and old layers stay as they are; new layers are
/// made as `growth` says, and the weights, moments and counts of updates go with them.
pub fn grow(state: &mut TrainState, architecture: Architecture, growth: &Growth) -> Result<(), TorchError> {
    let (from, layers) = (state.parameters.layers(), architecture.layers());
    state.stages.grown_from = (from != layers).then_some(from);
    if from == layers {
        return Ok(());
    }
    let plan = Plan { growth, sources: growth.sources(from, layers), old: &state.parameters };
    let kernels = state.parameters.kernels().clone();
    let grown = torch::guard(|| {
        let mut grown = TrainState::new(Parameters::zeros(kernels, architecture));
        for spec in &grown.parameters.specs().to_vec() {
            plan.make(spec, state, &mut grown);
        }
        grown
    })?;
    state.take_tensors(grown);
    Ok(())
}

/// Where each parameter of the deeper model comes from.
struct Plan<'a> {
    growth: &'a Growth,
    /// For each layer the one that it is made from, and whether it is new.
    sources: Vec<(usize, bool)>,
    old: &'a Parameters,
}

/// Where one parameter comes from, in the flat buffers of the model before.
struct Origin<'a> {
    /// Its weights.
    weights: Weights,
    /// The parameter that it has its moments from, and what part of them is taken; none if `None`.
    moments: Option<(&'a Spec, f32)>,
}

enum Weights {
    /// Those of a parameter of the model before.
    Of(Range<usize>),
    /// All the same.
    All(f32),
}

impl Weights {
    /// Those of a normalisation that only normalises.
    fn plain(role: Role) -> Self {
        Self::All(if role.is_gain() { 1.0 } else { 0.0 })
    }
}

impl<'a> Plan<'a> {
    /// Gives a parameter of `grown` its weights, moments and count of updates.
    fn make(&self, spec: &Spec, old: &TrainState, grown: &mut TrainState) {
        let origin = self.origin(spec);
        match origin.weights {
            Weights::Of(from) => grown.copy(Buffer::Weights, spec.range(), old, from, 1.0),
            Weights::All(value) => grown.fill(Buffer::Weights, spec.range(), value),
        }
        let Some((from, share)) = origin.moments else { return };
        grown.copy(Buffer::First, spec.range(), old, from.range(), share);
        grown.copy(Buffer::Second, spec.range(), old, from.range(), share * share);
        grown.updates.insert(spec.group(), old.updates_of(from));
    }

    fn origin(&self, spec: &Spec) -> Origin<'a> {
        let Some(layer) = spec.id.layer else {
            let old = self.old.spec(spec.id);
            return Origin { weights: Weights::Of(old.range()), moments: Some((old, 1.0)) };
        };
        let (source, new) = self.sources[layer];
        let old = |layer: usize| self.old.spec(TensorId { layer: Some(layer), ..spec.id });
        let of = |layer: usize| old(layer).range();
        let moments = match self.growth.moments() {
            Moments::Copy => Some(1.0),
            Moments::Zero => (!new).then_some(1.0),
            Moments::Scale => Some(1.0 / self.sources.iter().filter(|(other, _)| *other == source).count() as f32),
        };
        let weights = match self.growth.identity {
            true => self.identity(layer, spec, of),
            false => Weights::Of(of(source)),
        };
        Origin { weights, moments: moments.map(|share| (old(source), share)) }
    }

    /// The weights of a part of the deeper model if its new layers put out what goes in: their projections add nothing.
    /// With post-normalisation a sum is normalised behind each of them, which leaves alone what has been normalised and
    /// nothing else: so the gain and bias below a row of new layers are moved to its end, and all before have 1 and 0.
    fn identity(&self, layer: usize, spec: &Spec, of: impl Fn(usize) -> Range<usize>) -> Weights {
        let (source, new) = self.sources[layer];
        let is_new = |layer: usize| self.sources.get(layer).is_some_and(|(_, new)| *new);
        match spec.role {
            Role::ResidualOutput(_) if new => Weights::All(0.0),
            Role::InnerNorm(_) | Role::ClosingNorm(_) => {
                let ends = matches!(spec.role, Role::ClosingNorm(_));
                let old = (0..=layer).rev().find(|below| !is_new(*below)).unwrap_or(0);
                match (new, is_new(layer + 1)) {
                    (true, false) if ends => Weights::Of(of(self.sources[old].0)),
                    (true, _) => Weights::plain(spec.role),
                    (false, true) if ends => Weights::plain(spec.role),
                    (false, _) => Weights::Of(of(source)),
                }
            }
            _ => Weights::Of(of(source)),
        }
    }
}

/// Freezes what is unused; and all but the new layers while a stage whose model had `from` layers before it has `done` of the
/// steps in which only these are trained.
pub fn freeze(
    parameters: &mut Parameters,
    growth: &Growth,
    from: Option<usize>,
    done: u64,
    is_unused: impl Fn(&Spec) -> bool,
) {
    let Some(from) = from.filter(|_| done < growth.new_layers_only) else {
        return parameters.freeze(is_unused);
    };
    let sources = growth.sources(from, parameters.layers());
    let is_new = |spec: &Spec| spec.id.layer.is_some_and(|layer| sources.get(layer).is_some_and(|(_, new)| *new));
    parameters.freeze(|spec| !is_new(spec));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use lambert_config::run::{GrowthOrder, Model, Norm};
    use tch::{Kind, Tensor};

    use super::*;
    use crate::data::MicroBatch;
    use crate::data::batch::MaskedSample;
    use crate::kernels::Host;
    use crate::masking::MaskedToken;
    use crate::model::input::Input;
    use crate::model::{Dropout, Encoder};

    const PIECES: usize = 50;

    fn of(model: &Model, layers: usize) -> Architecture {
        Architecture::new(model, layers, PIECES)
    }

    /// A state of a small model whose every element tells it from all others.
    fn state(norm: Norm, layers: usize) -> (TrainState, Model) {
        let shape = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let model = Model { norm, pad_vocabulary_to: 8, ..shape };
        let parameters = Parameters::initialize(Arc::new(Host), of(&model, layers), 1, 0.3);
        let mut state = TrainState::new(parameters);
        // The gains and biases of a new model are 1 and 0: trained ones are not.
        for spec in state.parameters.specs().iter().filter(|spec| spec.name.contains("LayerNorm")) {
            let mut weights = state.parameters.read(spec);
            let rough = |(i, weight): (usize, &mut f32)| *weight += 0.3 * ((7 * i) as f32).sin();
            weights.iter_mut().enumerate().for_each(rough);
            state.parameters.write(spec, &weights);
        }
        for (buffer, from) in [(Buffer::First, 1e5), (Buffer::Second, 3e5)] {
            let numbers: Vec<f32> = (0..state.elements()).map(|i| from + i as f32).collect();
            state.write(buffer, 0, &numbers);
        }
        updated(&mut state, 70);
        (state, model)
    }

    /// Lets `updates` updates be counted.
    fn updated(state: &mut TrainState, updates: usize) {
        (0..updates).for_each(|_| state.count_update());
    }

    /// Weights and both moments, by name.
    fn tensors(state: &TrainState) -> BTreeMap<String, [Vec<f32>; 3]> {
        let of = |spec: &Spec| {
            [Buffer::Weights, Buffer::First, Buffer::Second].map(|buffer| state.read(buffer, spec.range()))
        };
        state.parameters.specs().iter().map(|spec| (spec.name.clone(), of(spec))).collect()
    }

    /// Each tensor of the grown model against the old ones put together by hand: `made` says for each new layer which old
    /// one it is made from.
    fn check(order: GrowthOrder, moments: Moments, made: &[usize], factor: impl Fn(usize) -> [f32; 2]) {
        let (mut state, model) = state(Norm::Post, 2);
        let before = tensors(&state);
        grow(&mut state, of(&model, made.len()), &Growth { order, moments: Some(moments), ..Growth::default() })
            .unwrap();
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
        let ages: BTreeMap<_, _> = (0..made.len()).map(|layer| (layer, age(&state, layer))).collect();
        let zero = moments == Moments::Zero;
        let expected = |layer: usize| if zero && factor(layer) == [0.0, 0.0] { 0 } else { 70 };
        assert!(ages.iter().all(|(layer, age)| *age == expected(*layer)), "{ages:?}");
    }

    /// Updates that the moments of a layer have seen.
    fn age(state: &TrainState, layer: usize) -> u64 {
        state.updates.get(&format!("layer.{layer}")).copied().unwrap_or(0)
    }

    #[test]
    fn grown_models_are_what_one_would_put_together_by_hand() {
        check(GrowthOrder::Stack, Moments::Copy, &[0, 1, 0, 1], |_| [1.0, 1.0]);
        check(GrowthOrder::Stack, Moments::Copy, &[0, 1, 0, 1, 0], |_| [1.0, 1.0]);
        check(GrowthOrder::Interleave, Moments::Copy, &[0, 0, 1, 1], |_| [1.0, 1.0]);
        check(
            GrowthOrder::Stack,
            Moments::Zero,
            &[0, 1, 0, 1],
            |layer| if layer < 2 { [1.0, 1.0] } else { [0.0, 0.0] },
        );
        check(GrowthOrder::Interleave, Moments::Zero, &[0, 0, 0, 1, 1, 1], |layer| match layer {
            0 | 3 => [1.0, 1.0],
            _ => [0.0, 0.0],
        });
        check(GrowthOrder::Stack, Moments::Scale, &[0, 1, 0, 1], |_| [0.5, 0.25]);
        check(
            GrowthOrder::Stack,
            Moments::Scale,
            &[0, 1, 0],
            |layer| if layer == 1 { [1.0, 1.0] } else { [0.5, 0.25] },
        );
    }

    /// Hidden states and MLM logits for a sample.
    fn answers(state: &TrainState, model: &Model) -> (Tensor, Tensor) {
        let bert = Encoder::new(&state.parameters, model);
        let hidden = vec![MaskedToken { position: 1, label: 3 }];
        let sample = MaskedSample {
            ids: (5..17).collect(),
            segment_b_start: 6,
            pair_label: Some(1),
            masked_tokens: hidden,
            loss_scale: 1.0,
        };
        let batch = MicroBatch::new(&[0], 12, 0, &[sample]);
        tch::no_grad(|| {
            let hidden = bert.forward(&Input::upload(state.kernels(), &batch), Dropout::Off);
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
        for order in [GrowthOrder::Stack, GrowthOrder::Interleave] {
            for (norm, limit) in [(Norm::Pre, 0.0), (Norm::Post, 1e-5)] {
                let (mut grown, model) = state(norm, 2);
                let (hidden, logits) = answers(&grown, &model);
                grow(&mut grown, of(&model, 6), &Growth { order, identity: true, ..Growth::default() }).unwrap();
                let (deep_hidden, deep_logits) = answers(&grown, &model);
                let far = apart(&hidden, &deep_hidden).max(apart(&logits, &deep_logits));
                assert!(far <= limit, "{order:?} {norm:?}: {far:e}");
                let (mut copied, _) = state(norm, 2);
                grow(&mut copied, of(&model, 6), &Growth { order, ..Growth::default() }).unwrap();
                assert!(apart(&hidden, &answers(&copied, &model).0) > 0.01, "copies change the answers");
            }
        }
    }

    #[test]
    fn layers_without_moments_count_their_updates_anew() {
        let (mut state, model) = state(Norm::Post, 2);
        let growth = Growth { moments: Some(Moments::Zero), ..Growth::default() };
        grow(&mut state, of(&model, 4), &growth).unwrap();
        updated(&mut state, 20);
        grow(&mut state, of(&model, 8), &growth).unwrap();
        assert_eq!(std::array::from_fn(|layer| age(&state, layer)), [90, 90, 20, 20, 0, 0, 0, 0]);
        let copy = Growth::default();
        updated(&mut state, 1);
        grow(&mut state, of(&model, 16), &copy).unwrap();
        assert_eq!(age(&state, 10), 21, "a copy is as old as what it was made from");
        assert_eq!(state.updates["bert.pooler"], 91);
    }

    #[test]
    fn what_is_frozen_grows_no_older() {
        let (mut state, model) = state(Norm::Post, 1);
        let growth = Growth { new_layers_only: 3, moments: Some(Moments::Zero), ..Growth::default() };
        state.restart_optimizer();
        grow(&mut state, of(&model, 2), &growth).unwrap();
        let from = state.stages.grown_from;
        for done in 0..5 {
            freeze(&mut state.parameters, &growth, from, done, |_| false);
            state.count_update();
        }
        assert_eq!((age(&state, 0), age(&state, 1), state.updates["bert.embeddings"]), (2, 5, 2));
    }
}
