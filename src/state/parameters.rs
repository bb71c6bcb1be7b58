//! Weights of a model on one device: a flat buffer and a view of it for each parameter.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::Model;
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Architecture, Role, TensorId};
use tch::{Kind, Tensor};

use super::Region;
use super::layout::{self, ParamSpec};
use crate::kernels::Kernels;
use crate::torch;

/// Weights of a model.
pub struct Parameters {
    /// Kernels of the device that holds the weights.
    pub(super) kernels: Arc<dyn Kernels>,
    /// Weights, f32 \[elements\].
    pub(super) values: Tensor,
    /// Copy of the weights in the compute dtype. An optimizer update also changes the copy. `None` if the compute dtype
    /// is f32.
    pub(super) bf16: Option<Tensor>,
    architecture: Arc<Architecture>,
    specs: Vec<ParamSpec>,
    views: Vec<Tensor>,
    /// For each set of fused parameters, the indices of their specs, and one view of all parameters of the set.
    fused: Vec<(Range<usize>, Tensor)>,
    indices: HashMap<TensorId, usize>,
}

/// Standard deviations of the initial weights.
#[derive(Debug, Clone, Copy)]
pub struct InitialDeviation {
    matrices: f64,
    /// Projections whose output is added to a residual.
    residual_outputs: f64,
}

impl InitialDeviation {
    /// Returns the deviations that the configuration specifies. They do not depend on the depth of the stage.
    pub fn of_model(model: &Model) -> Self {
        let matrices = model.initializer_range;
        let scale = if model.scaled_initialization { (2.0 * model.layers as f64).sqrt() } else { 1.0 };
        Self { matrices, residual_outputs: matrices / scale }
    }

    fn of(self, role: Role) -> f64 {
        match role {
            Role::ResidualOutput(_) => self.residual_outputs,
            _ => self.matrices,
        }
    }
}

impl From<f64> for InitialDeviation {
    fn from(deviation: f64) -> Self {
        Self { matrices: deviation, residual_outputs: deviation }
    }
}

impl Parameters {
    /// Creates parameters that are all zero.
    pub fn zeros(kernels: Arc<dyn Kernels>, architecture: impl Into<Arc<Architecture>>) -> Self {
        let architecture = architecture.into();
        let specs = layout::specs(&architecture);
        let values = kernels.zeros(&[layout::elements(&specs) as i64], Kind::Float);
        let views = specs.iter().map(|spec| view(&values, spec).detach()).collect();
        let indices = specs.iter().enumerate().map(|(index, spec)| (spec.id, index)).collect();
        let fused = fused(&specs).into_iter().map(|rows| (rows.clone(), join(&values, &specs[rows]).detach()));
        let fused = fused.collect();
        Self { kernels, values, bf16: None, architecture, specs, views, fused, indices }
    }

    /// Initializes the parameters as BERT does. Matrices are drawn from a normal distribution truncated at two standard
    /// deviations. Biases are 0, and layer norm gains are 1. The initial value of a parameter is a pure function of the
    /// seed and of the parameter name. Padding rows of the vocabulary are 0 and stay 0, because they receive no
    /// gradient.
    pub fn initialize(
        kernels: Arc<dyn Kernels>,
        architecture: impl Into<Arc<Architecture>>,
        seed: u64,
        deviation: impl Into<InitialDeviation>,
    ) -> Self {
        let deviation = deviation.into();
        let parameters = Self::zeros(kernels, architecture);
        for spec in &parameters.specs {
            let mut elements = vec![0.0; spec.count()];
            if spec.role.decays() {
                fill_truncated_normal(
                    &mut elements,
                    Key::new(seed).with_bytes(spec.name.as_bytes()),
                    deviation.of(spec.role),
                );
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

    /// Makes the backward pass accumulate each gradient in its range of `gradients`.
    /// `gradients` is at least as long as the weights.
    pub(super) fn attach(&mut self, gradients: &Tensor) {
        for (spec, parameter) in self.specs.iter().zip(&mut self.views) {
            let _ = parameter.requires_grad_(true);
            torch::set_gradient(parameter, &view(gradients, spec));
        }
        for (numbers, parameter) in &mut self.fused {
            let _ = parameter.requires_grad_(true);
            torch::set_gradient(parameter, &join(gradients, &self.specs[numbers.clone()]));
        }
    }

    /// Kernels of the device that holds the weights.
    pub fn kernels(&self) -> &Arc<dyn Kernels> {
        &self.kernels
    }

    /// Names, shapes and offsets.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Architecture of the networks.
    pub fn architecture(&self) -> &Arc<Architecture> {
        &self.architecture
    }

    /// Number of encoder layers.
    pub fn layers(&self) -> usize {
        self.architecture.layers()
    }

    /// Freezes the parameters selected by `frozen` and unfreezes all others. Frozen parameters
    /// have zero gradients, and updates skip them.
    pub fn freeze(&mut self, frozen: impl Fn(&ParamSpec) -> bool) {
        for (spec, view) in self.specs.iter_mut().zip(&mut self.views) {
            spec.is_frozen = frozen(spec);
            let _ = view.requires_grad_(!spec.is_frozen);
        }
        for (numbers, view) in &mut self.fused {
            let _ = view.requires_grad_(!self.specs[numbers.start].is_frozen);
        }
    }

    /// Returns a handle to a parameter.
    ///
    /// # Panics
    /// The architecture has no such parameter.
    pub fn tensor(&self, id: TensorId) -> Tensor {
        self.views[self.index_of(id)].shallow_clone()
    }

    /// Returns a handle to a parameter and the parameters fused with it, stacked along the first dimension.
    pub fn fused(&self, id: TensorId) -> Tensor {
        let index = self.index_of(id);
        let found = self.fused.iter().find(|(numbers, _)| numbers.start == index);
        found.unwrap_or_else(|| panic!("no parameter is fused with {id:?}")).1.shallow_clone()
    }

    /// Creates a copy of the weights in dtype `kind`, unless `kind` is f32. An optimizer update also changes the copy.
    /// After any other change of the weights, call this function again.
    pub fn keep_bf16_copy(&mut self, kind: Kind) {
        self.bf16 = (kind != Kind::Float).then(|| self.values.detach().to_kind(kind));
    }

    /// Like [`Parameters::tensor`], but in the compute dtype; `None` if the compute dtype is f32.
    pub fn bf16_tensor(&self, id: TensorId) -> Option<Tensor> {
        self.bf16.as_ref().map(|bf16| view(bf16, self.spec(id)))
    }

    /// Like [`Parameters::fused`], but in the compute dtype; `None` if the compute dtype is f32.
    pub fn bf16_joined(&self, id: TensorId) -> Option<Tensor> {
        let rows = self.fused.iter().find(|(numbers, _)| numbers.start == self.index_of(id))?.0.clone();
        self.bf16.as_ref().map(|bf16| join(bf16, &self.specs[rows]))
    }

    /// Name, shape and offset of a parameter.
    pub fn spec(&self, id: TensorId) -> &ParamSpec {
        &self.specs[self.index_of(id)]
    }

    /// Returns name, shape and offset of a parameter, if the architecture has it.
    pub fn find(&self, id: TensorId) -> Option<&ParamSpec> {
        self.indices.get(&id).map(|index| &self.specs[*index])
    }

    /// Copies the weights of a parameter to host memory.
    pub fn read(&self, spec: &ParamSpec) -> Vec<f32> {
        let mut elements = vec![0.0_f32; spec.count()];
        self.kernels.read(&self.values, size_of::<f32>() * spec.first, bytemuck::cast_slice_mut(&mut elements));
        elements
    }

    /// Sets the weights of a parameter.
    pub fn write(&self, spec: &ParamSpec, elements: &[f32]) {
        assert_eq!(elements.len(), spec.count(), "{}", spec.name);
        self.kernels.write(&self.values, size_of::<f32>() * spec.first, bytemuck::cast_slice(elements));
    }

    /// View of ranges of the weights as consecutive bytes.
    pub fn region(&self, ranges: Vec<Range<usize>>) -> Region {
        Region::new(Arc::clone(&self.kernels), self.values.shallow_clone(), ranges)
    }

    fn index_of(&self, id: TensorId) -> usize {
        *self.indices.get(&id).unwrap_or_else(|| panic!("the model has no parameter {id:?}"))
    }
}

/// View of a parameter in a flat buffer.
pub(super) fn view(buffer: &Tensor, spec: &ParamSpec) -> Tensor {
    buffer.narrow(0, spec.first as i64, spec.count() as i64).view(spec.shape.as_slice())
}

/// Index ranges of the sets of fused parameters.
fn fused(specs: &[ParamSpec]) -> Vec<Range<usize>> {
    let mut runs = Vec::<Range<usize>>::new();
    for (number, _) in specs.iter().enumerate().filter(|(_, spec)| spec.is_fused) {
        match runs.last_mut().filter(|run| run.end == number) {
            Some(run) => run.end += 1,
            None => runs.push(number.saturating_sub(1)..number + 1),
        }
    }
    runs
}

/// View of fused parameters in a flat buffer, stacked along the first dimension.
fn join(buffer: &Tensor, specs: &[ParamSpec]) -> Tensor {
    let mut shape = specs[0].shape.clone();
    shape[0] = specs.iter().map(|spec| spec.shape[0]).sum();
    let count = specs.iter().map(ParamSpec::count).sum::<usize>();
    buffer.narrow(0, specs[0].first as i64, count as i64).view(shape.as_slice())
}

/// Draws normal values with the polar method of Marsaglia. Values beyond two standard deviations are drawn again.
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
    fn padding_rows_are_zero_and_do_not_change_the_others() {
        let model = Model { pad_vocabulary_to: 8, tied_decoder: false, ..tiny() };
        let plain = Model { pad_vocabulary_to: 1, ..model.clone() };
        let weights = |model: &Model, module: ModuleKind| {
            let parameters = Parameters::initialize(host(), Architecture::new(model, 1, 50), 1, 0.02);
            parameters.read(parameters.spec(TensorId::new(module, ParamKind::Weight)))
        };
        for module in [ModuleKind::WordEmbeddings, ModuleKind::Decoder] {
            let (padded, plain) = (weights(&model, module), weights(&plain, module));
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
        // Truncation at two standard deviations reduces the variance to 0.7737 of the untruncated variance.
        assert!((square / 0.0004 - 0.7737).abs() < 0.01, "{square}");
        let mean = elements.iter().map(|value| f64::from(*value)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.0003, "{mean}");
    }
}
