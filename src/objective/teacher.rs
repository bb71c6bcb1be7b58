//! Teacher of a model: a frozen network, whose output the losses of the model read.

use std::rc::Rc;

use lambert_config::run;
use lambert_plan::memory::teacher::CHUNK;
use lambert_plan::objectives;

use super::{Loss, Pass, PassInput, PassOutput};
use crate::data::MicroBatch;
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
}

/// Returns the passes of `student` with a teacher: a frozen pass of the teacher, then the pass of the student with the losses
/// that read it.
pub fn passes(teacher: &Teacher, student: Pass, config: &run::Objective) -> Vec<Pass> {
    let losses = objectives::losses(config).into_iter().filter(objectives::LossSpec::needs_teacher);
    let encoder = || Encoder::new(&teacher.parameters, &teacher.model);
    let temperature = config.teacher.as_ref().map_or(1.0, |teacher| teacher.temperature);
    let input = TaughtInput { heads: Rc::new(encoder().heads), temperature, chunk: teacher.chunk };
    let losses: Vec<Box<dyn Loss>> = losses.map(super::loss).collect();
    vec![Pass::frozen(encoder()), student.with_losses(losses).with_input(Box::new(input))]
}

/// Adds the output of the teacher, which is the first pass, to the micro-batch.
struct TaughtInput {
    heads: Rc<crate::model::Heads>,
    temperature: f64,
    chunk: i64,
}

impl PassInput for TaughtInput {
    fn make(&self, input: &Input, earlier: &[PassOutput]) -> Input {
        let output = earlier.first().map(|output| TeacherOutput {
            hidden: output.hidden.shallow_clone(),
            heads: Rc::clone(&self.heads),
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

/// Number of tokens of a micro-batch, without padding.
pub(super) fn tokens(batch: &MicroBatch) -> usize {
    batch.lengths.iter().map(|length| *length as usize).sum()
}
