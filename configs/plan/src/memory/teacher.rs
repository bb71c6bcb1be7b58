//! Memory of a teacher on a rank, by formula: its weights, its forward pass, and the losses of its student.

use lambert_config::run::{Precision, RunConfig, Teacher};

use crate::architecture::{Architecture, CostUnit, Head, ModuleKind, Network};
use crate::distillation;

/// Maximum number of logits for which the loss of the soft targets is computed at a time.
pub const CHUNK: usize = 1 << 24;

/// Bytes per logit of a chunk: logits of both models, their logarithms of probabilities, probabilities, and the gradient, in f32.
const LOGIT: f64 = 24.0;

/// Bytes per element of the weight of the decoder: its gradient, and that gradient multiplied by the weight of the loss.
const DECODER: f64 = 8.0;

/// Returns the bytes of the weights of the teacher, and of their copy in the compute dtype. 0 without a teacher.
pub fn state(config: &RunConfig, vocabulary: usize) -> u64 {
    let teacher = config.objective.teacher.as_ref();
    let parameters =
        teacher.and_then(|teacher| distillation::network(teacher, vocabulary)).map_or(0, |it| it.parameters());
    let copy = if config.model.precision == Precision::Bf16 { 2 } else { 0 };
    parameters.saturating_mul(4 + copy)
}

/// Bytes that a teacher needs for a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct TeacherActivations {
    /// Peak of the forward pass of the teacher, before the passes of the student.
    pub forward: f64,
    /// Hidden states of the teacher, kept during the passes of the student.
    pub kept: f64,
    /// Losses of the student that read the teacher, in addition to its other losses.
    pub losses: f64,
}

/// Returns the bytes for a micro-batch of `tokens` tokens in samples of `length` tokens. `student` has the networks of the run.
pub(super) fn activations(
    config: &RunConfig,
    student: &Architecture,
    tokens: f64,
    length: usize,
) -> TeacherActivations {
    let vocabulary = student.vocabulary();
    let found = config.objective.teacher.as_ref();
    let found = found.and_then(|teacher| Some((teacher, distillation::network(teacher, vocabulary)?)));
    let Some((teacher, network)) = found else { return TeacherActivations::default() };
    let Some(facts) = &teacher.facts else { return TeacherActivations::default() };
    let bytes = if config.model.precision == Precision::Bf16 { 2.0 } else { 4.0 };
    let (hidden, wide) = (facts.model.hidden as f64, facts.model.feed_forward_width() as f64);
    let weights = tokens * length as f64 * facts.model.heads as f64;
    let scores = if network.relative_rows() > 0 { 8.0 * weights } else { 0.0 };
    let local = tokens * network.local_mask_columns(length) as f64;
    let sides = network.has(|module| module.part == ModuleKind::RelativeEmbeddings);
    let tables = if sides { 4.0 * network.relative_rows() as f64 * hidden } else { 0.0 };
    let layer = tokens * (5.0 * hidden).max(hidden + 2.0 * wide);
    let embeddings = 8.0 * tokens * facts.model.embedding() as f64;
    TeacherActivations {
        forward: (bytes * (layer + scores + local + tables)).max(embeddings),
        kept: bytes * tokens * hidden,
        losses: losses(teacher, student, bytes, tokens, config),
    }
}

/// Returns the bytes of the losses that read the teacher.
fn losses(teacher: &Teacher, student: &Architecture, bytes: f64, tokens: f64, config: &RunConfig) -> f64 {
    let (hidden, width) = (config.model.hidden as f64, config.model.embedding() as f64);
    let cosine = if teacher.cosine_weight > 0.0 { 12.0 * tokens * hidden } else { 0.0 };
    let of = |network: &Network| soft_targets(network, bytes, tokens, width);
    let soft = student.networks().iter().map(of).sum::<f64>();
    cosine + if teacher.soft_target_weight > 0.0 { soft } else { 0.0 }
}

/// Returns the bytes of the loss of the soft targets: the MLM head at all tokens, and the gradients of the decoder.
fn soft_targets(network: &Network, bytes: f64, tokens: f64, width: f64) -> f64 {
    let rows = network.padded_vocabulary as f64;
    let count = |unit| if unit == CostUnit::MaskedToken { tokens } else { 0.0 };
    let head = network.head_activation_elements(Head::MaskedLanguage, count);
    let chunk = (CHUNK as f64).max(rows).min(tokens * rows);
    // The gradients of the input of the decoder are in f32, and with bf16 that input has a copy in f32.
    let states = if bytes < 4.0 { 8.0 } else { 4.0 } * tokens * width;
    let decoder = rows * width;
    bytes * head + states + (LOGIT * chunk + 4.0 * decoder).max(DECODER * decoder + 4.0 * tokens * width)
}
