//! Memory of a teacher on a rank, by formula: its weights, its forward pass, and the losses of its student.

use lambert_config::run::{Precision, RunConfig, Teacher};

use crate::architecture::{Architecture, CostUnit, Head, Network};
use crate::distillation;

/// Maximum number of logits for which the loss of the soft targets is computed at a time.
pub const CHUNK: usize = 1 << 24;

/// Bytes that a chunk of logits needs on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkCost {
    /// Bytes per logit while the loss is computed.
    pub loss: f64,
    /// Bytes per logit while the gradient of the decoder is computed.
    pub gradient: f64,
    /// Bytes per weight of the decoder while its gradient is added.
    pub weight: f64,
}

impl ChunkCost {
    /// Cost on a CPU: logits of both models, logarithms of probabilities, probabilities, and the gradient. In bf16, the product of
    /// a chunk exists before it is added.
    pub fn on_cpu(precision: Precision) -> Self {
        Self { loss: 18.0, gradient: 18.0, weight: if precision == Precision::Bf16 { 2.0 } else { 0.0 } }
    }
}

/// Bytes per logit of an earlier loss that are kept on a CPU while the soft targets are computed: the log-softmax.
pub(super) const KEPT_LOGIT: f64 = 4.0;

/// Bytes per element of the hidden states for the cosine loss: the gradient, and a temporary tensor, in f32.
const COSINE: f64 = 8.0;

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
    /// Losses that read the teacher, while the loss of the soft targets is computed.
    pub at_score: f64,
    /// Losses that read the teacher, at the peak of their backward pass.
    pub at_backward: f64,
    /// Gradients of the losses that read the teacher, during the backward pass of other losses.
    pub saved: f64,
}

/// Returns the bytes for a micro-batch of `tokens` tokens in samples of `length` tokens. `student` has the networks of the run.
pub(super) fn activations(
    config: &RunConfig,
    student: &Architecture,
    tokens: f64,
    length: usize,
    cost: ChunkCost,
) -> TeacherActivations {
    let found = config.objective.teacher.as_ref();
    let found = found.and_then(|teacher| Some((teacher, distillation::network(teacher, student.vocabulary())?)));
    let Some((teacher, network)) = found else { return TeacherActivations::default() };
    let Some(facts) = &teacher.info else { return TeacherActivations::default() };
    let bytes = if config.model.precision == Precision::Bf16 { 2.0 } else { 4.0 };
    let (hidden, wide) = (facts.model.hidden as f64, facts.model.feed_forward_width() as f64);
    // The peak is at the activation function of the feed-forward layer, or at the scores of relative positions.
    let rows = network.relative_rows() as f64;
    let scores = if rows > 0.0 { 8.0 * tokens * length as f64 * facts.model.heads as f64 } else { 0.0 };
    let local = tokens * network.local_mask_columns(length) as f64;
    let layer = tokens * (4.0 * hidden + 2.0 * wide) + scores + local + 4.0 * rows * hidden;
    let embeddings = 8.0 * tokens * facts.model.embedding() as f64;
    let rotation = if facts.model.rotary_base.is_some() { rotation(bytes) * tokens * hidden } else { 0.0 };
    // With a teacher, a run has one network.
    let soft = student.networks().first().map(|network| soft_targets(teacher, network, (tokens, cost), config));
    let SoftTargetMemory { states, chunk, gradient } = soft.unwrap_or_default();
    let cosine = if teacher.cosine_weight > 0.0 { COSINE * tokens * config.model.hidden as f64 } else { 0.0 };
    TeacherActivations {
        forward: (bytes * layer).max(embeddings).max(rotation + bytes * local),
        kept: bytes * tokens * hidden,
        at_score: states + chunk,
        at_backward: states + 2.0 * gradient + cosine,
        // The gradients of the weight of the decoder and of the hidden states wait for those of the other losses.
        saved: gradient + bytes * tokens * config.model.hidden as f64,
    }
}

/// Bytes per element of the hidden states while single operations rotate the keys: in the dtype of `bytes` bytes, the hidden states
/// before and after the normalization, queries, keys, values and the rotated queries; in f32, the rotated keys and their halves. With
/// bf16, also the keys in f32 and the rotated keys in bf16.
fn rotation(bytes: f64) -> f64 {
    6.0 * bytes + 8.0 + if bytes < 4.0 { 4.0 + bytes } else { 0.0 }
}

/// Bytes of the loss of the soft targets.
#[derive(Debug, Clone, Copy, Default)]
struct SoftTargetMemory {
    /// MLM head at all tokens, with the gradient of the input of its decoder.
    states: f64,
    /// Chunk of logits, with the gradient of the weight of the decoder, or two tensors of the shape of this gradient.
    chunk: f64,
    /// Gradient of the weight of the decoder.
    gradient: f64,
}

fn soft_targets(
    teacher: &Teacher,
    network: &Network,
    (tokens, cost): (f64, ChunkCost),
    config: &RunConfig,
) -> SoftTargetMemory {
    if teacher.soft_target_weight == 0.0 {
        return SoftTargetMemory::default();
    }
    let bytes = if config.model.precision == Precision::Bf16 { 2.0 } else { 4.0 };
    let (rows, width) = (network.padded_vocabulary as f64, config.model.embedding() as f64);
    let count = |unit| if unit == CostUnit::MaskedToken { tokens } else { 0.0 };
    let states = bytes * network.head_activation_elements(Head::MaskedLanguage, count) + 8.0 * tokens * width;
    let chunk = (CHUNK as f64 / rows).floor().max(1.0).min(tokens) * rows;
    let chunk = (cost.loss * chunk).max(cost.gradient * chunk + cost.weight * rows * width);
    let gradient = 4.0 * rows * width;
    // After the last chunk, the gradient is multiplied by the weight.
    SoftTargetMemory { states, chunk: gradient + chunk.max(gradient), gradient }
}
