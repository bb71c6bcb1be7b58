//! GPU memory that a rank needs, by formula, and the largest micro-batch that fits.
//!
//! The formula estimates the memory of the tensors of a step. src/kernels/meta/memory.rs counts these tensors one by
//! one, also without a GPU. The formula is never below that count and at most 17% above it. [`reserve`] covers the
//! additional memory that CUDA and libtorch take.

use crate::architecture::{ALIGNMENT, Architecture, CostUnit, Head, ModuleKind, Network, NormInput};
use crate::objectives::{self, TrainedNetwork};
use lambert_config::run::{Attention, Model, Objective, Precision, RunConfig, Stage, Unpadded};

use super::DatasetShape;
use super::teacher::{ChunkCost, TeacherActivations};

/// Additional bytes per parameter with bf16: a bf16 copy of the weights.
const BF16_WEIGHTS: u64 = 2;
/// Upper bounds: the number of tensors per layer, and the number of tensors outside the layers.
const TENSOR_COUNTS: (u64, u64) = (16, 26);

/// Bytes per token of the micro-batch itself: ids, segments, positions and masks, with temporaries.
const IDS: f64 = 64.0;
/// Bytes per token of the drawn tokens, of their targets, and of the losses over all tokens of a discriminator.
const DETECTION: f64 = 128.0;
/// Bytes per token and layer for the means and standard deviations of the two normalizations of the layer.
const STATISTICS: f64 = 16.0;
/// The backward pass of fused attention accumulates in f32. It works in blocks of `BLOCK` rows of attention weights,
/// and pads head sizes to multiples of `HEAD`.
const BLOCK: usize = 128;
const HEAD: usize = 32;
/// Factor that covers small tensors, which the formula does not list.
const SMALL_TENSORS: f64 = 1.01;

/// Returns the peak bytes of GPU memory for activations and their gradients of a micro-batch of `tokens` tokens. The
/// passes of several networks run one after another, so the largest peak counts.
pub fn activations(config: &RunConfig, stage: &Stage, data: DatasetShape, tokens: usize) -> u64 {
    let architecture = Architecture::of_run(config, stage.depth(&config.model), data.vocabulary);
    let trained = objectives::networks(&config.model, &config.objective);
    // A kernel computes the loss of the soft targets from the logits of both models, with the gradient.
    let bytes = compute_bytes(&config.model);
    let cost = ChunkCost { loss: 3.0 * bytes, gradient: bytes, weight: 0.0 };
    let teacher = super::teacher::activations(config, &architecture, tokens as f64, data.sequence_length, cost);
    let networks = trained.iter().zip(architecture.networks());
    let bytes = networks.map(|(trained, network)| {
        let is_read = network.number + 1 < architecture.networks().len();
        pass_activations(config, (trained, network), stage, (data, tokens), (is_read, teacher))
    });
    bytes.max().unwrap_or(0)
}

/// Returns the bytes of the pass of one network. If a later pass reads its logits, `is_read` is true.
fn pass_activations(
    config: &RunConfig,
    (trained, network): (&TrainedNetwork, &Network),
    stage: &Stage,
    (data, tokens): (DatasetShape, usize),
    (is_read, teacher): (bool, TeacherActivations),
) -> u64 {
    let model = &trained.model;
    let bytes = compute_bytes(model);
    let (hidden, layers) = (model.hidden as f64, network.applications() as f64);
    let all = tokens as f64;
    let (row, wide) = (bytes * all * hidden, bytes * all * model.feed_forward_width() as f64);
    let is_pre_norm = !network.has(|module| module.norm_input == NormInput::InnerSum);
    let normed = if is_pre_norm { row } else { 0.0 };

    // Keyed attention (`model.attention`) keeps the attention weights before and after dropout. Fused attention keeps
    // one log-sum-exp per row of attention weights, and its backward pass accumulates in f32.
    let samples = samples(data, all);
    let lines = all / data.sequence_length.max(1) as f64 * model.heads as f64;
    let has_relative_positions = network.relative_rows() > 0;
    let (attention, mixing) = if keeps_weights(config) || has_relative_positions {
        let weights = bytes * all * data.sequence_length as f64 * model.heads as f64;
        let kept = if model.drops_attention() { 2.0 * weights } else { weights };
        // The gradients of the scores of both directions exist for all distances, which are twice as many as the keys.
        (kept, if has_relative_positions { 5.5 * weights } else { weights })
    } else {
        let head = (model.hidden / model.heads.max(1)).next_multiple_of(HEAD);
        let padded = lines * data.sequence_length.next_multiple_of(BLOCK) as f64;
        // Unpadded samples follow one another, with a block after each of them.
        let unpadded = model.heads as f64 * (all + BLOCK as f64 * samples);
        let sums = 4.0 * head as f64 * if may_be_unpadded(config) { padded.max(unpadded) } else { padded };
        (4.0 * lines * data.sequence_length.next_multiple_of(HEAD) as f64, sums + 4.0 * row)
    };
    let relative = bytes * network.relative_elements(all, data.sequence_length, model.hidden);
    // The kernel of a gated activation function keeps its input only, not the activated half.
    let is_gated = network.module(ModuleKind::Intermediate).is_some_and(|module| module.is_gated);
    let has_gate_kernel = is_gated && model.intermediate % 4 == 0;
    let kept = network.activation_elements() - if has_gate_kernel { model.intermediate } else { 0 };
    let layer = bytes * all * kept as f64 + attention + relative + STATISTICS * all;

    // The peak of the backward pass of one layer is at the feed-forward output, or at the attention once the tensors
    // above the attention are freed.
    let at_output = if is_gated { row + normed + wide } else { 2.0 * row + normed + wide };
    let freed = row + if has_gate_kernel { 1.5 * wide } else { 2.0 * wide };
    let back = at_output.max(3.0 * row).max(mixing - freed);

    let masked = masked(&stage.objective.of(&config.objective), data, tokens);
    let rows = network.padded_vocabulary as f64;
    let count = |unit| match unit {
        CostUnit::Token => all,
        CostUnit::MaskedToken => masked,
        CostUnit::Sample => samples,
    };
    let own = || trained.losses.iter().filter(|loss| !loss.needs_teacher()).map(|loss| loss.head);
    let states: f64 = own().map(|head| bytes * network.head_activation_elements(head, count)).sum();
    // A detection has no logits of the vocabulary. The gradients of its dense layer and of the activation function exist together.
    let detection = if own().any(|head| head == Head::ReplacedTokens) { 2.0 * row } else { 0.0 };
    let logits: f64 = own().map(|head| network.logits(head, count)).sum();
    let widest = own().map(|head| network.logits(head, count)).fold(0.0, f64::max);
    // The backward pass reads the logits, so they exist until all losses are computed.
    let kept = states + bytes * logits;
    let read = if is_read { bytes * logits } else { 0.0 };
    // The backward pass of the heads runs loss by loss, beginning with the losses that read the teacher. It computes the gradient of
    // the logits in their dtype.
    let at_backward = (bytes * widest + teacher.saved).max(teacher.at_backward);
    let head = kept + (detection + at_backward).max(teacher.at_score);

    let most = if stage.recompute {
        // Kept are the input of each layer, the output of the last layer, and the gradient of that output.
        (layers + 2.0) * row + head.max(layer + back + read)
    } else {
        // The sum of the embeddings is in f32. It is kept only if a normalization follows (post-norm).
        let embeddings = row + if is_pre_norm { 0.0 } else { 4.0 * all * hidden };
        // The output of the last layer stays alive during the backward pass of the heads.
        embeddings + layers * layer + (head + row).max(back + read)
    };
    // Parameter vectors in the compute dtype, and the padding columns of the logits.
    let vectors = 4.0 * rows + (4.0 * layers + 8.0) * hidden * bytes;
    // The table of relative positions with its three projections, in the backward pass of a layer.
    let table = 4.0 * bytes * network.relative_rows() as f64 * hidden;
    // The hidden states that a later pass may read.
    let most = if is_read { most + row } else { most };
    let most = (most + teacher.kept).max(teacher.forward);
    let ids = if objectives::networks(&config.model, &config.objective).len() > 1 { IDS + DETECTION } else { IDS };
    (SMALL_TENSORS * (most + ids * all + vectors + table)) as u64
}

/// Bytes of an element in the compute dtype.
fn compute_bytes(model: &Model) -> f64 {
    match model.precision {
        Precision::Fp32 | Precision::Tf32 => 4.0,
        Precision::Bf16 => 2.0,
    }
}

/// True if dropout on a GPU depends on the partition into micro-batches, because fused attention uses its own random
/// generator.
pub fn dropout_depends_on_micro_batches(config: &RunConfig) -> bool {
    config.model.attention != Attention::Keyed && config.model.drops_attention()
}

/// True if a GPU may compute unpadded micro-batches.
fn may_be_unpadded(config: &RunConfig) -> bool {
    config.model.precision == Precision::Bf16 && config.device.unpadded != Unpadded::Never
}

/// Returns the number of samples of a micro-batch of `tokens` tokens.
fn samples(data: DatasetShape, tokens: f64) -> f64 {
    tokens / data.mean_length.clamp(1, data.sequence_length.max(1)) as f64
}

/// True if the attention weights are kept in GPU memory for the backward pass.
fn keeps_weights(config: &RunConfig) -> bool {
    config.model.attention == Attention::Keyed && config.model.drops_attention()
}

/// Returns the number of masked tokens of a micro-batch. `max_predictions` does not reduce the number, because shorter
/// samples do not reach this limit.
fn masked(objective: &Objective, data: DatasetShape, tokens: usize) -> f64 {
    let share = objective.mask_probability.max(1.0 / data.sequence_length.max(1) as f64);
    let long = tokens.div_ceil(data.sequence_length.max(1)) as f64 * objective.predictions(data.sequence_length) as f64;
    let mean = samples(data, tokens as f64) * objective.predictions(data.mean_length.max(1)) as f64;
    // The number of masked tokens is rounded per sample.
    (tokens as f64 * share).max(long).max(mean)
}

/// Returns the bytes of GPU memory for the training state of a model with `layers` layers.
pub fn state(config: &RunConfig, layers: usize, vocabulary: usize) -> u64 {
    let copy = if config.model.precision == Precision::Bf16 { BF16_WEIGHTS } else { 0 };
    let architecture = Architecture::of_run(config, layers, vocabulary);
    let of_network =
        |network: &Network| TENSOR_COUNTS.0.saturating_mul(network.layers() as u64).saturating_add(TENSOR_COUNTS.1);
    let tensors = architecture.networks().iter().map(of_network).fold(0, u64::saturating_add);
    let parameters = architecture.parameters();
    let half = if config.metrics.noise_scale_every_steps > 0 { super::HALF_BATCH_GRADIENT } else { 0 };
    let own = parameters.saturating_add(ALIGNMENT as u64 * tensors).saturating_mul(super::STATE + copy + half);
    own.saturating_add(super::teacher::state(config, vocabulary))
}

/// Returns the bytes of GPU memory that one of `world` ranks needs in stage `index`, with micro-batches of at most
/// `tokens` tokens. If the stage grows the model, the old and the new training state coexist at the start of the stage.
/// The result is the larger of the peak at the start and the peak during training.
pub fn needed(config: &RunConfig, index: usize, data: DatasetShape, world: usize, tokens: usize) -> u64 {
    let stage = &config.stage[index];
    let layers = stage.depth(&config.model);
    // A micro-batch never exceeds the rank batch. A sample above the token budget gets its own micro-batch.
    let tokens = tokens.min(rank_samples(stage, world).saturating_mul(data.sequence_length)).max(data.sequence_length);
    let own = state(config, layers, data.vocabulary);
    let before = index.checked_sub(1).map_or(layers, |before| config.depth(before));
    let growing = if before == layers { 0 } else { own.saturating_add(state(config, before, data.vocabulary)) };
    let architecture = Architecture::of_run(config, layers, data.vocabulary);
    let update = super::update(config, &architecture, world);
    own.saturating_add(activations(config, stage, data, tokens).max(update)).max(growing)
}

/// Returns the number of samples of a global batch per rank, rounded up. The samples have equal lengths.
fn rank_samples(stage: &Stage, world: usize) -> usize {
    stage.global_batch.div_ceil(world.max(1)).max(1)
}

/// Returns the bytes to reserve out of `free` bytes of GPU memory: 1 GiB for CUDA kernels and library workspaces, and
/// 5 % for fragmentation in libtorch's caching allocator. Estimated, not measured.
pub fn reserve(free: u64) -> u64 {
    (1 << 30) + free / 20
}

/// True if micro-batches of at most `tokens` tokens fit into `room` bytes in stage `index`, and none of their tensors has 2^31
/// elements or more.
pub fn fits(config: &RunConfig, index: usize, data: DatasetShape, world: usize, tokens: usize, room: u64) -> bool {
    let most = rank_samples(&config.stage[index], world).saturating_mul(data.sequence_length);
    needed(config, index, data, world, tokens) <= room
        && elements(config, index, data, tokens.min(most)) < f64::from(i32::MAX)
}

/// Returns the size, in tokens, of the largest micro-batch that fits into `room` bytes in stage `index`. The size is a
/// multiple of the maximum sample length and at most the rank batch, and no tensor has 2^31 elements or more. Returns
/// `None` if not even one sample fits.
pub fn largest(config: &RunConfig, index: usize, data: DatasetShape, world: usize, room: u64) -> Option<usize> {
    let fits = |samples: usize| fits(config, index, data, world, samples.saturating_mul(data.sequence_length), room);
    let (mut fitting, mut above) = (0, rank_samples(&config.stage[index], world).saturating_add(1));
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut above }) = middle;
    }
    (fitting > 0).then_some(fitting * data.sequence_length)
}

/// Returns the number of elements of the largest tensor of a micro-batch in stage `index`, over all networks.
fn elements(config: &RunConfig, index: usize, data: DatasetShape, tokens: usize) -> f64 {
    let all = tokens as f64;
    let objective = config.stage[index].objective.of(&config.objective);
    let masked = masked(&objective, data, tokens);
    let of_network = |model: &Model| {
        let weights = if keeps_weights(config) { all * data.sequence_length as f64 * model.heads as f64 } else { 0.0 };
        let wide = all * model.intermediate.max(3 * model.hidden) as f64;
        // Scores of relative positions, for all distances.
        let distances = if model.position_buckets > 0 { (2 * data.sequence_length - 1) * model.heads } else { 0 };
        wide.max(weights).max(all * distances as f64).max(masked * model.padded_vocabulary(data.vocabulary) as f64)
    };
    let networks = objectives::networks(&config.model, &objective);
    networks.iter().map(|network| of_network(&network.model)).fold(0.0, f64::max)
}
