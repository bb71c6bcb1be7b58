//! Teacher of a model: a frozen network, whose output the losses of the model read.

use std::rc::Rc;
use std::sync::Arc;

use lambert_config::run;
use lambert_dataset::random::Key;
use lambert_plan::memory::teacher::CHUNK;
use lambert_plan::objectives;

use super::{Loss, Pass, PassInput, PassOutput};
use crate::kernels::Kernels;
use crate::model::Encoder;
use crate::model::input::{Input, TeacherOutput};
use crate::state::Parameters;

/// Weights of a teacher. They have no gradients and no moments.
pub struct Teacher {
    /// Weights.
    pub parameters: Parameters,
    /// Configuration of its network.
    pub model: run::Model,
    /// Maximum number of logits that are computed at a time.
    pub chunk: i64,
}

impl Teacher {
    /// Describes a teacher with these weights.
    pub fn new(parameters: Parameters, model: run::Model) -> Self {
        Self { parameters, model, chunk: CHUNK as i64 }
    }

    /// Returns the configuration of a teacher that computes like the model it teaches.
    pub fn model(teacher: &run::Model, student: &run::Model) -> run::Model {
        run::Model { precision: student.precision, attention: student.attention, ..teacher.clone() }
    }
}

/// Returns the passes of `student` with a teacher: a frozen pass of the teacher, then the pass of the student with the losses
/// that read it.
pub fn passes(teacher: &Teacher, student: Pass, config: &run::Objective) -> Vec<Pass> {
    let losses = objectives::losses(config).into_iter().filter(objectives::LossSpec::needs_teacher);
    let encoder = || Encoder::new(&teacher.parameters, 0, &teacher.model);
    let temperature = config.teacher.as_ref().map_or(1.0, |teacher| teacher.temperature);
    let kernels = Arc::clone(teacher.parameters.kernels());
    let input = TaughtInput { heads: Rc::new(encoder().heads), kernels, temperature, chunk: teacher.chunk };
    let losses: Vec<Box<dyn Loss>> = losses.map(super::loss).collect();
    vec![Pass::frozen(encoder()), student.with_losses(losses).with_input(Box::new(input))]
}

/// Adds the output of the teacher, which is the first pass, to the micro-batch.
struct TaughtInput {
    heads: Rc<crate::model::Heads>,
    kernels: Arc<dyn Kernels>,
    temperature: f64,
    chunk: i64,
}

impl PassInput for TaughtInput {
    fn make(&self, input: &Input, earlier: &[PassOutput], _: &dyn Kernels, _: Key) -> Input {
        let output = earlier.first().map(|output| TeacherOutput {
            hidden: output.hidden.shallow_clone(),
            heads: Rc::clone(&self.heads),
            kernels: Arc::clone(&self.kernels),
            temperature: self.temperature,
            chunk: self.chunk,
        });
        let mut taught = input.shallow_clone();
        taught.teacher = output;
        taught
    }
}

/// Returns the output of the teacher for a micro-batch.
///
/// # Panics
/// The objective has a loss that needs a teacher, but no teacher.
pub(super) fn output(input: &Input) -> &TeacherOutput {
    input.teacher.as_ref().expect("a loss that needs a teacher is only in an objective with a teacher")
}

#[cfg(test)]
pub(super) mod tests {
    use serde::Deserialize;
    use tch::{Kind, Tensor};

    /// Golden values of tests/golden/make_distillation.py.
    #[derive(Deserialize)]
    pub struct Golden {
        /// Tokens, width of the input of the decoder, hidden size and vocabulary.
        pub sizes: [i64; 4],
        /// 1 for tokens, 0 for padding.
        pub weights: Vec<f64>,
        pub states: Vec<f64>,
        pub weight: Vec<f64>,
        pub bias: Vec<f64>,
        pub teacher_logits: Vec<f64>,
        pub soft_targets: Vec<SoftTargets>,
        pub hidden: Vec<f64>,
        pub teacher_hidden: Vec<f64>,
        pub cosine: f64,
        pub cosine_gradient: Vec<f64>,
    }

    #[derive(Deserialize)]
    pub struct SoftTargets {
        pub temperature: f64,
        pub loss: f64,
        /// Gradients of the states, the weight and the bias.
        pub gradients: Vec<Vec<f64>>,
    }

    impl Golden {
        pub fn read() -> Self {
            serde_json::from_str(include_str!("../../tests/golden/distillation.json")).unwrap()
        }
    }

    pub fn tensor(values: &[f64], shape: &[i64]) -> Tensor {
        Tensor::from_slice(values).to_kind(Kind::Float).view(shape)
    }

    pub fn parameter(values: &[f64], shape: &[i64]) -> Tensor {
        tensor(values, shape).set_requires_grad(true)
    }

    /// Asserts that all elements are close, relative to the largest expected one.
    pub fn close(found: &Tensor, expected: &[f64], tolerance: f64) {
        let found: Vec<f64> = Vec::try_from(found.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap();
        let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= tolerance * largest, "{found} instead of {expected}");
        }
    }
}
