//! LAMB (arXiv 1904.00962, algorithm 2, with the details of the NVIDIA recipe): Adam's direction plus weight decay,
//! scaled for each tensor by the ratio of the weights' norm to the update's.

use lambert_config::run::Optimizer as Settings;

use super::chunks::{self, Chunk, sum_of_squares};

/// Elements that are worked on while they are in the cache.
const BLOCK: usize = 2048;

/// `u = m_hat / (sqrt(v_hat) + eps) + decay p`, then `p -= rate |p| / |u| u`. Tensors without weight decay have a
/// ratio of 1 (unless the settings say otherwise), and so has one whose weights or update are all zero.
pub(super) fn update(settings: &Settings, chunks: &mut [Chunk<'_>], threads: usize) {
    let sums = chunks::each(chunks, threads, directions);
    let parameters = chunks.last().map_or(0, |chunk| chunk.parameter + 1);
    let mut norms = vec![(0.0, 0.0); parameters];
    for (chunk, (weights, update)) in chunks.iter().zip(sums) {
        norms[chunk.parameter].0 += weights;
        norms[chunk.parameter].1 += update;
    }
    chunks::each(chunks, threads, |chunk| {
        let (weights, update) = norms[chunk.parameter];
        let trusted = chunk.decays || settings.trust_undecayed;
        let ratio = if trusted { ratio(weights.sqrt(), update.sqrt(), settings.trust_ratio) } else { 1.0 };
        apply(chunk.rule.learning_rate * ratio as f32, chunk);
    });
}

/// The trust ratio of a tensor with these norms, within `bounds`.
fn ratio(weights: f64, update: f64, bounds: Option<[f64; 2]>) -> f64 {
    let ratio = if weights > 0.0 && update > 0.0 { weights / update } else { 1.0 };
    bounds.map_or(ratio, |[least, most]| ratio.clamp(least, most))
}

/// Moves the moments and leaves `u` where the gradients were; the sums of the squares of weights and `u`.
fn directions(chunk: &mut Chunk<'_>) -> (f64, f64) {
    let rule = chunk.rule;
    let decay = if chunk.decays { rule.weight_decay } else { 0.0 };
    let buffers = &mut chunk.buffers;
    let (mut weights_sum, mut update_sum) = (0.0, 0.0);
    let moments = buffers.first.chunks_mut(BLOCK).zip(buffers.second.chunks_mut(BLOCK));
    let blocks = buffers.weights.chunks(BLOCK).zip(buffers.gradients.chunks_mut(BLOCK)).zip(moments);
    for ((weights, gradients), (first, second)) in blocks {
        for (((weight, gradient), first), second) in weights.iter().zip(&mut *gradients).zip(first).zip(second) {
            *gradient = rule.direction(*gradient, first, second) + decay * *weight;
        }
        weights_sum += sum_of_squares(weights);
        update_sum += sum_of_squares(gradients);
    }
    (weights_sum, update_sum)
}

fn apply(rate: f32, chunk: &mut Chunk<'_>) {
    for (weight, update) in chunk.buffers.weights.iter_mut().zip(&*chunk.buffers.gradients) {
        *weight -= rate * *update;
    }
}
