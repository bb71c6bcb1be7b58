//! What a rank needs of a card's memory, by formula; the largest micro-batch that fits; and what is said where one does not.
//!
//! Counted are the tensors of a step, as src/kernels/meta/memory.rs counts them without a card: the formula is never below
//! those, and at most 15 % above. What CUDA and libtorch take beside the tensors is [`reserve`].

use crate::architecture::{ALIGNMENT, Architecture, Each, Normalises};
use crate::objectives::{self, Loss};
use lambert_config::run::{Attention, Precision, RunConfig, Stage};

use super::Data;

/// Bytes a parameter more with bf16: the weights once more.
const COPY: u64 = 2;
/// A layer's tensors, and those that are there once, at most.
const TENSORS: (u64, u64) = (16, 16);

/// Bytes an element of the vocabulary and masked token: in f32 the logarithms of the softmax, their gradient and the logits'.
const SOFTMAX: f64 = 12.0;
/// Bytes a token of the micro-batch itself: ids, segments, positions and masks, each while the others are made.
const IDS: f64 = 64.0;
/// Bytes a token of a layer for means and deviations of its two normalisations.
const STATISTICS: f64 = 16.0;
/// Fused attention's way back sums in f32, in blocks of so many rows of weights, and heads of multiples of so many numbers.
const BLOCK: usize = 128;
const HEAD: usize = 32;
/// For small tensors that are not named here.
const REST: f64 = 1.01;

/// Bytes of the activations, and of their gradients, of a micro-batch of `tokens` tokens on a card, at their most, if all its
/// samples have the dataset's longest length.
pub fn activations(config: &RunConfig, stage: &Stage, data: Data, tokens: usize) -> u64 {
    let model = &config.model;
    let bytes = match model.precision {
        Precision::Fp32 | Precision::Tf32 => 4.0,
        Precision::Bf16 => 2.0,
    };
    let (hidden, layers) = (model.hidden as f64, stage.depth(model) as f64);
    let architecture = Architecture::of_run(config, 1, data.pieces);
    let network = &architecture.networks()[0];
    let all = tokens as f64;
    let (row, wide) = (bytes * all * hidden, bytes * all * model.intermediate as f64);
    let is_first_normed = !network.has(|module| module.normalises == Normalises::InnerSum);
    let normed = if is_first_normed { row } else { 0.0 };

    // Keyed attention keeps its weights before and after dropout; fused attention a logarithm for each row of them, and its
    // way back sums in f32.
    let lines = all / data.longest.max(1) as f64 * model.heads as f64;
    let (attention, mixing) = if keeps_weights(config) {
        let weights = bytes * all * data.longest as f64 * model.heads as f64;
        (2.0 * weights, weights)
    } else {
        let head = (model.hidden / model.heads.max(1)).next_multiple_of(HEAD);
        let sums = 4.0 * lines * (data.longest.next_multiple_of(BLOCK) * head) as f64;
        (4.0 * lines * data.longest.next_multiple_of(HEAD) as f64, sums + 4.0 * row)
    };
    let layer = bytes * all * network.kept_by_layer() as f64 + attention + STATISTICS * all;

    // One layer's way back: at the feed-forward layer's output, or at the attention, when what lies above it has gone.
    let back = (2.0 * row + normed + wide).max(3.0 * row).max(mixing - 2.0 * (row + wide));

    let masked = masked(config, data, tokens);
    let rows = network.rows as f64;
    let count = |each| match each {
        Each::Token => all,
        Each::MaskedToken => masked,
        Each::Sample => all / data.longest.max(1) as f64,
    };
    let of_loss =
        |loss: &Loss| SOFTMAX * network.logits(loss.head, count) + bytes * network.kept_by_head(loss.head, count);
    let head: f64 = objectives::losses(&config.objective).iter().map(of_loss).sum();

    let most = if stage.recompute {
        // What goes into each layer, what comes out of the last, and its gradient.
        (layers + 2.0) * row + head.max(layer + back)
    } else {
        // The sum of the embeddings is f32, and kept where it is normalised.
        let embeddings = row + if is_first_normed { 0.0 } else { 4.0 * all * hidden };
        // What comes out of the last layer stays while the heads' way back runs.
        embeddings + layers * layer + (head + row).max(back)
    };
    // Vectors of parameters as the layers compute with them, and the logits' rows that stand for no piece.
    let vectors = 4.0 * rows + (4.0 * layers + 8.0) * hidden * bytes;
    (REST * (most + IDS * all + vectors)) as u64
}

/// Whether dropout on a card follows how a global batch is cut into micro-batches: fused attention draws by itself.
pub fn follows_cuts(config: &RunConfig) -> bool {
    config.model.attention != Attention::Keyed && config.model.drops_attention()
}

/// Whether attention keeps its weights on a card.
fn keeps_weights(config: &RunConfig) -> bool {
    config.model.attention == Attention::Keyed && config.model.drops_attention()
}

/// Masked tokens of a micro-batch. Shorter samples reach `max_predictions` later, so that this is no bound on them.
fn masked(config: &RunConfig, data: Data, tokens: usize) -> f64 {
    let share = config.objective.mask_probability.max(1.0 / data.longest.max(1) as f64);
    let samples = tokens.div_ceil(data.longest.max(1)) as f64;
    // Rounded for each sample.
    (tokens as f64 * share).max(samples * config.objective.predictions(data.longest) as f64)
}

/// Bytes of the training state with so many layers.
pub fn state(config: &RunConfig, layers: usize, pieces: usize) -> u64 {
    let copy = if config.model.precision == Precision::Bf16 { COPY } else { 0 };
    let tensors = TENSORS.0.saturating_mul(layers as u64).saturating_add(TENSORS.1);
    let parameters = Architecture::of_run(config, layers, pieces).parameters();
    let half = if config.metrics.noise_scale_every_steps > 0 { super::HALF } else { 0 };
    parameters.saturating_add(ALIGNMENT as u64 * tensors).saturating_mul(super::STATE + copy + half)
}

/// Bytes of a card that a rank of `world` needs in stage `index`, with micro-batches of at most `tokens` tokens. Where the model
/// grows that is the old and the new state at the stage's beginning, if that is more.
pub fn needed(config: &RunConfig, index: usize, data: Data, world: usize, tokens: usize) -> u64 {
    let stage = &config.stage[index];
    let layers = stage.depth(&config.model);
    // No micro-batch is larger than the rank's share; a sample that is longer than one may be is one by itself.
    let tokens = tokens.min(share(stage, world).saturating_mul(data.longest)).max(data.longest);
    let own = state(config, layers, data.pieces);
    let before = index.checked_sub(1).map_or(layers, |before| config.depth(before));
    let growing = if before == layers { 0 } else { own.saturating_add(state(config, before, data.pieces)) };
    own.saturating_add(activations(config, stage, data, tokens)).max(growing)
}

/// Samples of a global batch that a rank of `world` has at most, if all have the same length.
fn share(stage: &Stage, world: usize) -> usize {
    stage.global_batch.div_ceil(world.max(1)).max(1)
}

/// Bytes that a step's tensors leave to others, of `free` bytes of a card: CUDA's code and the workspaces of its libraries, 1 GiB,
/// and a twentieth for what libtorch's allocator cannot use because it is in pieces. Assumed, not measured.
pub fn reserve(free: u64) -> u64 {
    (1 << 30) + free / 20
}

/// The largest micro-batch, in tokens, that a stage has room for in `room` bytes: whole samples of the dataset's longest length,
/// no more than a rank of `world` has of the global batch, and no tensor of 2^31 elements. `None` if one sample is too much.
pub fn largest(config: &RunConfig, index: usize, data: Data, world: usize, room: u64) -> Option<usize> {
    let fits = |samples: usize| {
        let tokens = samples.saturating_mul(data.longest);
        needed(config, index, data, world, tokens) <= room && elements(config, data, tokens) < f64::from(i32::MAX)
    };
    let (mut fitting, mut above) = (0, share(&config.stage[index], world).saturating_add(1));
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut above }) = middle;
    }
    (fitting > 0).then_some(fitting * data.longest)
}

/// Elements of the largest tensor of a micro-batch.
fn elements(config: &RunConfig, data: Data, tokens: usize) -> f64 {
    let (model, all) = (&config.model, tokens as f64);
    let weights = if keeps_weights(config) { all * data.longest as f64 * model.heads as f64 } else { 0.0 };
    let wide = all * model.intermediate.max(3 * model.hidden) as f64;
    wide.max(weights).max(masked(config, data, tokens) * model.rows_of(data.pieces) as f64)
}
