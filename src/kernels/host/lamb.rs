//! LAMB (arXiv 1904.00962, algorithm 2, with the details of the NVIDIA recipe): Adam's direction plus weight decay,
//! scaled for each tensor by the ratio of the weights' norm to the update's.

use super::chunks::{self, Chunk, sum_of_squares};

/// Elements that are worked on while they are in the cache.
const BLOCK: usize = 2048;

/// `u = m_hat / (sqrt(v_hat) + eps) + decay p`, then `p -= rate |p| / |u| u`, of gradients that are multiplied with `scale`.
/// What is not trusted has a ratio of 1, and so has a tensor whose weights or update are all zero. Returns the rate times the
/// ratio of each parameter.
pub fn update(bounds: Option<[f64; 2]>, chunks: &mut [Chunk<'_>], scale: f32, threads: usize) -> Vec<f32> {
    let sums = chunks::each(chunks, threads, |chunk| directions(chunk, scale));
    let parameters = chunks.last().map_or(0, |chunk| chunk.parameter + 1);
    let mut norms = vec![(0.0, 0.0); parameters];
    for (chunk, (weights, update)) in chunks.iter().zip(sums) {
        norms[chunk.parameter].0 += weights;
        norms[chunk.parameter].1 += update;
    }
    let mut rates = vec![0.0; parameters];
    for Chunk { parameter, rule, .. } in &*chunks {
        let (weights, update) = norms[*parameter];
        let ratio = if rule.trusted { ratio(weights.sqrt(), update.sqrt(), bounds) } else { 1.0 };
        rates[*parameter] = rule.learning_rate * ratio as f32;
    }
    chunks::each(chunks, threads, |chunk| apply(rates[chunk.parameter], chunk));
    rates
}

/// The trust ratio of a tensor with these norms, within `bounds`.
fn ratio(weights: f64, update: f64, bounds: Option<[f64; 2]>) -> f64 {
    let ratio = if weights > 0.0 && update > 0.0 { weights / update } else { 1.0 };
    bounds.map_or(ratio, |[least, most]| ratio.clamp(least, most))
}

/// Moves the moments and leaves `u` where the gradients were; the sums of the squares of weights and `u`.
fn directions(chunk: &mut Chunk<'_>, scale: f32) -> (f64, f64) {
    let (rule, slices) = (chunk.rule, &mut chunk.slices);
    let (mut weights_sum, mut update_sum) = (0.0, 0.0);
    let moments = slices.first.chunks_mut(BLOCK).zip(slices.second.chunks_mut(BLOCK));
    let blocks = slices.weights.chunks(BLOCK).zip(slices.gradients.chunks_mut(BLOCK)).zip(moments);
    for ((weights, gradients), (first, second)) in blocks {
        for (((weight, gradient), first), second) in weights.iter().zip(&mut *gradients).zip(first).zip(second) {
            *gradient = rule.direction(*gradient * scale, first, second) + rule.weight_decay * *weight;
        }
        weights_sum += sum_of_squares(weights);
        update_sum += sum_of_squares(gradients);
    }
    (weights_sum, update_sum)
}

fn apply(rate: f32, chunk: &mut Chunk<'_>) {
    for (weight, update) in chunk.slices.weights.iter_mut().zip(&*chunk.slices.gradients) {
        *weight -= rate * *update;
    }
}
