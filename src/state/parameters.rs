//! The weights of a model on one device: one flat buffer, and a view of it for each parameter.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use lambert_dataset::random::Key;
use lambert_plan::architecture::{Architecture, TensorId};
use tch::{Kind, Tensor};

use super::Region;
use super::layout::{self, Spec};
use crate::kernels::Kernels;
use crate::torch;

/// The weights of a model.
pub struct Parameters {
    /// The device that they are on.
    pub(super) kernels: Arc<dyn Kernels>,
    /// All weights, \[elements\], f32.
    pub(super) values: Tensor,
    /// The same in the kind of number that the model computes with, where updates keep such a copy.
    pub(super) low: Option<Tensor>,
    architecture: Arc<Architecture>,
    specs: Vec<Spec>,
    views: Vec<Tensor>,
    /// Of joined parameters, as one: the number of the first, how many they are, and the view.
    joined: Vec<(Range<usize>, Tensor)>,
    places: HashMap<TensorId, usize>,
}

impl Parameters {
    /// Zeros.
    pub fn zeros(kernels: Arc<dyn Kernels>, architecture: impl Into<Arc<Architecture>>) -> Self {
        let architecture = architecture.into();
        let specs = layout::specs(&architecture);
        let values = kernels.zeros(&[layout::elements(&specs) as i64], Kind::Float);
        let views = specs.iter().map(|spec| view(&values, spec).detach()).collect();
        let places = specs.iter().enumerate().map(|(place, spec)| (spec.id, place)).collect();
        let joined = joined(&specs).into_iter().map(|rows| (rows.clone(), join(&values, &specs[rows]).detach()));
        let joined = joined.collect();
        Self { kernels, values, low: None, architecture, specs, views, joined, places }
    }

    /// The published initialisation: matrices from a normal distribution cut at two standard deviations, biases 0,
    /// layer normalisations 1. Each parameter is a pure function of the seed and its name. Rows that stand for no piece
    /// are 0, and stay so: no gradient reaches them.
    pub fn initialize(
        kernels: Arc<dyn Kernels>,
        architecture: impl Into<Arc<Architecture>>,
        seed: u64,
        deviation: f64,
    ) -> Self {
        let parameters = Self::zeros(kernels, architecture);
        for spec in &parameters.specs {
            let mut elements = vec![0.0; spec.count()];
            if spec.role.decays() {
                fill_truncated_normal(&mut elements, Key::new(seed).with_bytes(spec.name.as_bytes()), deviation);
                let width = elements.len() / spec.shape[0] as usize;
                let pieces = elements.len() - spec.padding.unwrap_or(0) * width;
                elements[pieces..].fill(0.0);
            } else if spec.role.is_gain() {
                elements.fill(1.0);
            }
            parameters.write(spec, &elements);
        }
        parameters
    }

    /// Lets backward accumulate each parameter's gradient in its place in `gradients`, which is as long as the weights at
    /// least.
    pub(super) fn attach(&mut self, gradients: &Tensor) {
        for (spec, parameter) in self.specs.iter().zip(&mut self.views) {
            let _ = parameter.requires_grad_(true);
            torch::set_gradient(parameter, &view(gradients, spec));
        }
        for (numbers, parameter) in &mut self.joined {
            let _ = parameter.requires_grad_(true);
            torch::set_gradient(parameter, &join(gradients, &self.specs[numbers.clone()]));
        }
    }

    /// The kernels of the device that the weights are on.
    pub fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.kernels
    }

    /// Names, shapes and places.
    pub fn specs(&self) -> &[Spec] {
        &self.specs
    }

    /// The description of the networks whose parameters they are.
    pub fn architecture(&self) -> &Arc<Architecture> {
        &self.architecture
    }

    /// Encoder layers.
    pub fn layers(&self) -> usize {
        self.architecture.layers()
    }

    /// Freezes the parameters of which `frozen` says so, and no others: backward leaves their gradients at zero, and updates
    /// pass them over.
    pub fn freeze(&mut self, frozen: impl Fn(&Spec) -> bool) {
        for (spec, view) in self.specs.iter_mut().zip(&mut self.views) {
            spec.frozen = frozen(spec);
            let _ = view.requires_grad_(!spec.frozen);
        }
        for (numbers, view) in &mut self.joined {
            let _ = view.requires_grad_(!self.specs[numbers.start].frozen);
        }
    }

    /// A handle to one parameter. Asking for what no [`Spec`] is is a mistake in the model's code.
    pub fn tensor(&self, id: TensorId) -> Tensor {
        self.views[self.place(id)].shallow_clone()
    }

    /// A handle to one parameter and those that are joined to it, one below the other.
    pub fn joined(&self, id: TensorId) -> Tensor {
        let place = self.place(id);
        let found = self.joined.iter().find(|(numbers, _)| numbers.start == place);
        found.unwrap_or_else(|| panic!("nothing is joined to {id:?}")).1.shallow_clone()
    }

    /// From here on updates keep a copy of the weights in `kind`, unless that is what they are. To be called again when they
    /// change otherwise.
    pub fn keep_low(&mut self, kind: Kind) {
        self.low = (kind != Kind::Float).then(|| self.values.detach().to_kind(kind));
    }

    /// What [`Parameters::tensor`] gives, in the copy; `None` if none is kept.
    pub fn low_tensor(&self, id: TensorId) -> Option<Tensor> {
        self.low.as_ref().map(|low| view(low, self.spec(id)))
    }

    /// What [`Parameters::joined`] gives, in the copy; `None` if none is kept.
    pub fn low_joined(&self, id: TensorId) -> Option<Tensor> {
        let rows = self.joined.iter().find(|(numbers, _)| numbers.start == self.place(id))?.0.clone();
        self.low.as_ref().map(|low| join(low, &self.specs[rows]))
    }

    /// Name, shape and place of one parameter.
    pub fn spec(&self, id: TensorId) -> &Spec {
        &self.specs[self.place(id)]
    }

    /// One parameter's weights, in main memory.
    pub fn read(&self, spec: &Spec) -> Vec<f32> {
        let mut elements = vec![0.0_f32; spec.count()];
        self.kernels.read(&self.values, size_of::<f32>() * spec.first, bytemuck::cast_slice_mut(&mut elements));
        elements
    }

    /// Gives one parameter these weights.
    pub fn write(&self, spec: &Spec, elements: &[f32]) {
        assert_eq!(elements.len(), spec.count(), "{}", spec.name);
        self.kernels.write(&self.values, size_of::<f32>() * spec.first, bytemuck::cast_slice(elements));
    }

    /// The ranges `ranges` of the weights, one behind the other, to be read or filled as bytes.
    pub fn region(&self, ranges: Vec<Range<usize>>) -> Region {
        Region::new(Arc::clone(&self.kernels), self.values.shallow_clone(), ranges)
    }

    fn place(&self, id: TensorId) -> usize {
        *self.places.get(&id).unwrap_or_else(|| panic!("the model has no parameter {id:?}"))
    }
}

/// A parameter's part of a flat buffer, in its shape.
pub(super) fn view(buffer: &Tensor, spec: &Spec) -> Tensor {
    buffer.narrow(0, spec.first as i64, spec.count() as i64).view(spec.shape.as_slice())
}

/// The numbers of parameters that are joined to each other.
fn joined(specs: &[Spec]) -> Vec<Range<usize>> {
    let mut runs = Vec::<Range<usize>>::new();
    for (number, _) in specs.iter().enumerate().filter(|(_, spec)| spec.joined) {
        match runs.last_mut().filter(|run| run.end == number) {
            Some(run) => run.end += 1,
            None => runs.push(number.saturating_sub(1)..number + 1),
        }
    }
    runs
}

/// The part of a flat buffer that parameters which are joined have, as one parameter with all their rows.
fn join(buffer: &Tensor, specs: &[Spec]) -> Tensor {
    let mut shape = specs[0].shape.clone();
    shape[0] = specs.iter().map(|spec| spec.shape[0]).sum();
    let count = specs.iter().map(Spec::count).sum::<usize>();
    buffer.narrow(0, specs[0].first as i64, count as i64).view(shape.as_slice())
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
    use crate::kernels::Host;
    use crate::state::{Buffer, TrainState};
    use lambert_config::run::Model;
    use lambert_plan::architecture::{ModuleKind, ParamKind};

    fn tiny() -> Model {
        Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..Model::default() }
    }

    fn host() -> Arc<dyn Kernels> {
        Arc::new(Host)
    }

    #[test]
    fn rows_without_a_piece_are_zero_and_the_others_as_ever() {
        let model = Model { pad_vocabulary_to: 8, tied_decoder: false, ..tiny() };
        let plain = Model { pad_vocabulary_to: 1, ..model.clone() };
        let weights = |model: &Model, part: ModuleKind| {
            let parameters = Parameters::initialize(host(), Architecture::new(model, 1, 50), 1, 0.02);
            parameters.read(parameters.spec(TensorId::new(part, ParamKind::Weight)))
        };
        for part in [ModuleKind::WordEmbeddings, ModuleKind::Decoder] {
            let (padded, plain) = (weights(&model, part), weights(&plain, part));
            assert_eq!((padded.len(), plain.len()), (56 * 8, 50 * 8));
            assert_eq!(padded[..plain.len()], plain);
            assert!(padded[plain.len()..].iter().all(|weight| *weight == 0.0));
        }
    }

    #[test]
    fn backward_accumulates_into_the_flat_buffer() {
        let parameters = Parameters::initialize(host(), Architecture::new(&tiny(), 1, 50), 1, 0.02);
        let state = TrainState::new(parameters);
        let pooler = TensorId::new(ModuleKind::Pooler, ParamKind::Weight);
        let weight = state.parameters.tensor(pooler);
        for _ in 0..2 {
            (&weight * 3.0).sum(Kind::Float).backward();
        }
        let range = state.parameters.spec(pooler).range();
        let gradients = state.read(Buffer::Gradients, 0..state.elements());
        assert!(gradients[range.clone()].iter().all(|gradient| *gradient == 6.0));
        assert_eq!(gradients.iter().map(|gradient| *gradient as f64).sum::<f64>(), 6.0 * range.len() as f64);
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
