//! Progressive stacking: builds a deeper training state from a shallower one. Growth is deterministic. If a run is
//! killed before the first checkpoint at the new depth, the next attempt grows the model to the same bits.

use std::collections::BTreeSet;
use std::ops::Range;

use lambert_config::run::{Growth, Moments};
use lambert_plan::architecture::{Architecture, Network, Role, TensorId};

use crate::state::{Buffer, ParamSpec, Parameters, TrainState};
use crate::torch::{self, TorchError};

/// Grows `state` to the depth of `architecture`, if the depths differ. Embeddings, heads and existing layers keep
/// their weights. With `growth.identity`, some layer norms of existing layers are an exception. `growth` determines the
/// weights, moments and update counts of new layers.
pub fn grow(state: &mut TrainState, architecture: Architecture, growth: &Growth) -> Result<(), TorchError> {
    let (from, layers) = (state.parameters.layers(), architecture.layers());
    state.stages.grown_from = (from != layers).then_some(from);
    if from == layers {
        return Ok(());
    }
    let sources = sources(growth, from, &architecture);
    let kernels = state.parameters.kernels().clone();
    let grown = torch::guard(|| {
        let mut grown = TrainState::new(Parameters::zeros(kernels, architecture));
        let specs = grown.parameters.specs().to_vec();
        let incomplete = incomplete_layers(&state.parameters, &specs, &sources);
        let plan = GrowthPlan { growth, sources, incomplete, old: &state.parameters };
        for spec in &specs {
            plan.fill_parameter(spec, state, &mut grown);
        }
        grown
    })?;
    state.take_tensors(grown);
    Ok(())
}

/// Returns the source layer of each layer of the deeper model, and true if the layer is new. Shared layers are never new:
/// each is applied more often.
fn sources(growth: &Growth, from: usize, architecture: &Architecture) -> Vec<(usize, bool)> {
    let layers = architecture.layers();
    match architecture.networks().iter().any(Network::shares_layers) {
        true => (0..layers).map(|layer| (layer, false)).collect(),
        false => growth.sources(from, layers),
    }
}

/// Returns the layers with a parameter that their source layer lacks: copies of the first layer of a pre-norm network,
/// which has no normalization of its attention.
fn incomplete_layers(old: &Parameters, specs: &[ParamSpec], sources: &[(usize, bool)]) -> BTreeSet<usize> {
    let is_missing = |layer: usize, id: TensorId| old.find(TensorId { layer: Some(sources[layer].0), ..id }).is_none();
    specs.iter().filter_map(|spec| spec.id.layer.filter(|layer| is_missing(*layer, spec.id))).collect()
}

/// Sources of the parameters of the deeper model.
struct GrowthPlan<'a> {
    growth: &'a Growth,
    /// Source layer of each layer, and true if the layer is new.
    sources: Vec<(usize, bool)>,
    /// Layers with a parameter that has no source.
    incomplete: BTreeSet<usize>,
    old: &'a Parameters,
}

/// Source of one parameter, in the flat buffers of the shallower model.
struct ParamSource<'a> {
    weights: InitialWeights,
    /// Source of the moments and the factor to scale them by; `None` for zero moments.
    moments: Option<(&'a ParamSpec, f32)>,
}

enum InitialWeights {
    /// Copied from this range of the shallower model.
    Copied(Range<usize>),
    /// Filled with one value.
    Constant(f32),
}

impl InitialWeights {
    /// Gain or bias of a layer norm that does not change normalized input. The gain is 1, and the bias is 0.
    fn identity_norm(role: Role) -> Self {
        Self::Constant(if role.is_gain() { 1.0 } else { 0.0 })
    }
}

impl<'a> GrowthPlan<'a> {
    /// Sets the weights, moments and update count of a parameter of `grown`.
    fn fill_parameter(&self, spec: &ParamSpec, old: &TrainState, grown: &mut TrainState) {
        let origin = self.origin(spec);
        match origin.weights {
            InitialWeights::Copied(from) => grown.copy(Buffer::Weights, spec.range(), old, from, 1.0),
            InitialWeights::Constant(value) => grown.fill(Buffer::Weights, spec.range(), value),
        }
        let Some((from, share)) = origin.moments else { return };
        grown.copy(Buffer::First, spec.range(), old, from.range(), share);
        grown.copy(Buffer::Second, spec.range(), old, from.range(), share * share);
        grown.updates.insert(spec.group(), old.updates_of(from));
    }

    fn origin(&self, spec: &ParamSpec) -> ParamSource<'a> {
        let Some(layer) = spec.id.layer else {
            let old = self.old.spec(spec.id);
            return ParamSource { weights: InitialWeights::Copied(old.range()), moments: Some((old, 1.0)) };
        };
        let (source, new) = self.sources[layer];
        let old = |layer: usize| self.old.spec(TensorId { layer: Some(layer), ..spec.id });
        if self.old.find(TensorId { layer: Some(source), ..spec.id }).is_none() {
            // The source layer lacks this normalization: it is the first layer of a pre-norm network.
            return ParamSource { weights: InitialWeights::identity_norm(spec.role), moments: None };
        }
        let of = |layer: usize| old(layer).range();
        let moments = match self.growth.moments() {
            // All parameters of a layer have one update count, so all of them start with zero moments.
            _ if self.incomplete.contains(&layer) => None,
            Moments::Copy => Some(1.0),
            Moments::Zero => (!new).then_some(1.0),
            Moments::Scale => Some(1.0 / self.sources.iter().filter(|(other, _)| *other == source).count() as f32),
        };
        let weights = match self.growth.identity {
            true => self.identity(layer, spec, of),
            false => InitialWeights::Copied(of(source)),
        };
        ParamSource { weights, moments: moments.map(|share| (old(source), share)) }
    }

    /// Weights of a parameter if new layers start as the identity. The residual projections of new layers are zero.
    /// With post-norm, each new layer also normalizes its input. The normalization changes nothing only if the input
    /// was normalized with gain 1 and bias 0. For consecutive new layers, the gain and bias of the last layer norm
    /// before the new layers therefore move to the last layer norm of the new layers. That layer norm before the new
    /// layers, and all other layer norms of the new layers, get gain 1 and bias 0.
    fn identity(&self, layer: usize, spec: &ParamSpec, of: impl Fn(usize) -> Range<usize>) -> InitialWeights {
        let (source, new) = self.sources[layer];
        let is_new = |layer: usize| self.sources.get(layer).is_some_and(|(_, new)| *new);
        match spec.role {
            Role::ResidualOutput(_) if new => InitialWeights::Constant(0.0),
            Role::InnerNorm(_) | Role::ClosingNorm(_) => {
                let ends = matches!(spec.role, Role::ClosingNorm(_));
                let old = (0..=layer).rev().find(|below| !is_new(*below)).unwrap_or(0);
                match (new, is_new(layer + 1)) {
                    (true, false) if ends => InitialWeights::Copied(of(self.sources[old].0)),
                    (true, _) => InitialWeights::identity_norm(spec.role),
                    (false, true) if ends => InitialWeights::identity_norm(spec.role),
                    (false, _) => InitialWeights::Copied(of(source)),
                }
            }
            _ => InitialWeights::Copied(of(source)),
        }
    }
}

/// Freezes the parameters that step `done` (counted from 0) of a stage must not change. The stage grew the model from
/// `from` layers. During the first `new_layers_only` steps, freezes all parameters except those of the new layers.
/// After these steps, freezes only the unused parameters.
pub fn freeze(
    parameters: &mut Parameters,
    growth: &Growth,
    from: Option<usize>,
    done: u64,
    is_unused: impl Fn(&ParamSpec) -> bool,
) {
    let Some(from) = from.filter(|_| done < growth.new_layers_only) else {
        return parameters.freeze(is_unused);
    };
    let sources = growth.sources(from, parameters.layers());
    let is_new = |spec: &ParamSpec| spec.id.layer.is_some_and(|layer| sources.get(layer).is_some_and(|(_, new)| *new));
    parameters.freeze(|spec| !is_new(spec));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use lambert_config::run::{Family, GrowthOrder, Model, Norm};
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

    /// State of a small model with distinct moments and non-trivial layer norms.
    fn state(norm: Norm, layers: usize) -> (TrainState, Model) {
        let shape = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Model::default() };
        let model = Model { norm, pad_vocabulary_to: 8, ..shape };
        let parameters = Parameters::initialize(Arc::new(Host), of(&model, layers), 1, 0.3);
        let mut state = TrainState::new(parameters);
        // Perturb gains and biases, which are 1 and 0 in a new model.
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

    /// Counts `updates` updates.
    fn updated(state: &mut TrainState, updates: usize) {
        (0..updates).for_each(|_| state.count_update());
    }

    /// Weights and both moments, by parameter name.
    fn tensors(state: &TrainState) -> BTreeMap<String, [Vec<f32>; 3]> {
        let of = |spec: &ParamSpec| {
            [Buffer::Weights, Buffer::First, Buffer::Second].map(|buffer| state.read(buffer, spec.range()))
        };
        state.parameters.specs().iter().map(|spec| (spec.name.clone(), of(spec))).collect()
    }

    /// Compares the grown model with a model that the test assembles from the old tensors. `sources` has the source
    /// layer of each layer. `factor` returns the factors by which the two moments of a layer are scaled.
    fn check(order: GrowthOrder, moments: Moments, sources: &[usize], factor: impl Fn(usize) -> [f32; 2]) {
        let (mut state, model) = state(Norm::Post, 2);
        let before = tensors(&state);
        grow(&mut state, of(&model, sources.len()), &Growth { order, moments: Some(moments), ..Growth::default() })
            .unwrap();
        assert_eq!(state.parameters.layers(), sources.len());
        let mut expected = BTreeMap::new();
        for (name, tensors) in &before {
            let Some(rest) = name.strip_prefix("bert.encoder.layer.") else {
                expected.insert(name.clone(), tensors.clone());
                continue;
            };
            let (old, part) = rest.split_once('.').unwrap();
            for (layer, _) in sources.iter().enumerate().filter(|(_, source)| source.to_string() == old) {
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
        let ages: BTreeMap<_, _> = (0..sources.len()).map(|layer| (layer, age(&state, layer))).collect();
        let zero = moments == Moments::Zero;
        let expected = |layer: usize| if zero && factor(layer) == [0.0, 0.0] { 0 } else { 70 };
        assert!(ages.iter().all(|(layer, age)| *age == expected(*layer)), "{ages:?}");
    }

    /// Update count of a layer.
    fn age(state: &TrainState, layer: usize) -> u64 {
        state.updates.get(&format!("layer.{layer}")).copied().unwrap_or(0)
    }

    #[test]
    fn grown_model_matches_layers_assembled_by_hand() {
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
    fn forward(state: &TrainState, model: &Model) -> (Tensor, Tensor) {
        let bert = Encoder::new(&state.parameters, 0, model);
        let hidden = vec![MaskedToken { position: 1, label: 3 }];
        let sample = MaskedSample {
            ids: (5..17).collect(),
            segment_b_start: 6,
            pair_label: Some(1),
            masked_tokens: hidden,
            loss_scale: 1.0,
        };
        let batch = MicroBatch::padded(&[0], 12, &[sample]);
        tch::no_grad(|| {
            let hidden = bert.forward(&Input::upload(state.kernels(), &batch), Dropout::Off);
            let logits = bert.heads.masked_language(&hidden, &Tensor::from_slice(&[1i64, 7])).without_padding();
            (hidden, logits.narrow(1, 0, PIECES as i64))
        })
    }

    fn relative_error(one: &Tensor, other: &Tensor) -> f64 {
        let norm = |tensor: &Tensor| tensor.square().sum(Kind::Double).double_value(&[]).sqrt();
        norm(&(one - other)) / norm(one)
    }

    #[test]
    fn identity_layers_do_not_change_the_output() {
        for order in [GrowthOrder::Stack, GrowthOrder::Interleave] {
            for (norm, limit) in [(Norm::Pre, 0.0), (Norm::Post, 1e-5)] {
                let (mut grown, model) = state(norm, 2);
                let (hidden, logits) = forward(&grown, &model);
                grow(&mut grown, of(&model, 6), &Growth { order, identity: true, ..Growth::default() }).unwrap();
                let (deep_hidden, deep_logits) = forward(&grown, &model);
                let far = relative_error(&hidden, &deep_hidden).max(relative_error(&logits, &deep_logits));
                assert!(far <= limit, "{order:?} {norm:?}: {far:e}");
                let (mut copied, _) = state(norm, 2);
                grow(&mut copied, of(&model, 6), &Growth { order, ..Growth::default() }).unwrap();
                assert!(relative_error(&hidden, &forward(&copied, &model).0) > 0.01, "copies change the output");
            }
        }
    }

    /// The first layer of ModernBERT has no normalization of its attention, but its copy has one.
    #[test]
    fn a_normalization_without_a_source_starts_plain() {
        let shape = Model { hidden: 16, heads: 2, intermediate: 32, positions: 16, ..Family::Modernbert.model() };
        let model = Model { global_attention_every: 2, ..shape };
        let parameters = Parameters::initialize(Arc::new(Host), of(&model, 2), 1, 0.3);
        let mut state = TrainState::new(parameters);
        let numbers: Vec<f32> = (0..state.elements()).map(|i| 3.0 + i as f32).collect();
        [Buffer::Weights, Buffer::First].into_iter().for_each(|buffer| state.write(buffer, 0, &numbers));
        updated(&mut state, 70);
        let read = |state: &TrainState, buffer, name: &str| {
            let spec = state.parameters.specs().iter().find(|spec| spec.name == name).unwrap();
            state.read(buffer, spec.range())
        };
        let source = read(&state, Buffer::Weights, "model.layers.1.attn_norm.weight");
        grow(&mut state, of(&model, 4), &Growth::default()).unwrap();
        assert_eq!(read(&state, Buffer::Weights, "model.layers.2.attn_norm.weight"), [1.0; 16]);
        assert_eq!(read(&state, Buffer::First, "model.layers.2.attn_norm.weight"), [0.0; 16]);
        // With moments other than zero, the bias correction would be wrong for the moments without a source.
        let moments = read(&state, Buffer::First, "model.layers.2.mlp_norm.weight");
        assert_eq!((moments, age(&state, 2)), (vec![0.0; 16], 0));
        assert_eq!(age(&state, 3), 70);
        assert_ne!(read(&state, Buffer::First, "model.layers.3.attn_norm.weight"), [0.0; 16]);
        assert_eq!(read(&state, Buffer::Weights, "model.layers.3.attn_norm.weight"), source);
    }

    #[test]
    fn layers_with_zero_moments_restart_their_update_count() {
        let (mut state, model) = state(Norm::Post, 2);
        let growth = Growth { moments: Some(Moments::Zero), ..Growth::default() };
        grow(&mut state, of(&model, 4), &growth).unwrap();
        updated(&mut state, 20);
        grow(&mut state, of(&model, 8), &growth).unwrap();
        assert_eq!(std::array::from_fn(|layer| age(&state, layer)), [90, 90, 20, 20, 0, 0, 0, 0]);
        let copy = Growth::default();
        updated(&mut state, 1);
        grow(&mut state, of(&model, 16), &copy).unwrap();
        assert_eq!(age(&state, 10), 21, "a copy keeps the update count of its source");
        assert_eq!(state.updates["bert.pooler"], 91);
    }

    #[test]
    fn frozen_layers_do_not_count_updates() {
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
