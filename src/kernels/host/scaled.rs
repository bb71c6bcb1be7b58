//! LAMB (arXiv 1904.00962, algorithm 2, with the details of the BERT recipe of NVIDIA). The update of a tensor is the
//! Adam direction plus weight decay, scaled by the ratio of the weight norm to the update norm.

use super::chunks::{self, Chunk, sum_of_squares};

/// Elements per block. The four buffers of one block fit in the CPU cache.
const BLOCK: usize = 2048;

/// LAMB update `u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p`, `p -= learning_rate * (|p| / |u|) * u`. Gradients
/// are first multiplied by `scale`. The ratio `|p| / |u|` is replaced by 1 if the parameter does not use the trust
/// ratio, or if its weights or its update are all zero. Returns the step size of each parameter, which is the learning
/// rate times the ratio.
pub fn update(bounds: Option<[f64; 2]>, chunks: &mut [Chunk<'_>], scale: f32, threads: usize) -> Vec<f32> {
    let sums = chunks::for_each_chunk(chunks, threads, |chunk| directions(chunk, scale));
    let parameters = chunks.last().map_or(0, |chunk| chunk.parameter + 1);
    let mut norms = vec![(0.0, 0.0); parameters];
    for (chunk, (weights, update)) in chunks.iter().zip(sums) {
        norms[chunk.parameter].0 += weights;
        norms[chunk.parameter].1 += update;
    }
    let mut step_sizes = vec![0.0; parameters];
    for Chunk { parameter, constants, .. } in &*chunks {
        let (weights, update) = norms[*parameter];
        let ratio = if constants.uses_trust_ratio { ratio(weights.sqrt(), update.sqrt(), bounds) } else { 1.0 };
        step_sizes[*parameter] = constants.learning_rate * ratio as f32;
    }
    chunks::for_each_chunk(chunks, threads, |chunk| apply(step_sizes[chunk.parameter], chunk));
    step_sizes
}

/// Trust ratio of a tensor with weight norm `weights` and update norm `update`, clamped to `bounds`.
fn ratio(weights: f64, update: f64, bounds: Option<[f64; 2]>) -> f64 {
    let ratio = if weights > 0.0 && update > 0.0 { weights / update } else { 1.0 };
    bounds.map_or(ratio, |[min_ratio, max_ratio]| ratio.clamp(min_ratio, max_ratio))
}

/// Updates the moments and overwrites the gradients with `u`. Returns the sums of squares of the weights and of `u`.
fn directions(chunk: &mut Chunk<'_>, scale: f32) -> (f64, f64) {
    let (constants, slices) = (chunk.constants, &mut chunk.slices);
    let (mut weights_sum, mut update_sum) = (0.0, 0.0);
    let moments = slices.first.chunks_mut(BLOCK).zip(slices.second.chunks_mut(BLOCK));
    let blocks = slices.weights.chunks(BLOCK).zip(slices.gradients.chunks_mut(BLOCK)).zip(moments);
    for ((weights, gradients), (first, second)) in blocks {
        for (((weight, gradient), first), second) in weights.iter().zip(&mut *gradients).zip(first).zip(second) {
            *gradient = constants.direction(*gradient * scale, first, second) + constants.weight_decay * *weight;
        }
        weights_sum += sum_of_squares(weights);
        update_sum += sum_of_squares(gradients);
    }
    (weights_sum, update_sum)
}

fn apply(step_size: f32, chunk: &mut Chunk<'_>) {
    for (weight, update) in chunk.slices.weights.iter_mut().zip(&*chunk.slices.gradients) {
        *weight -= step_size * *update;
    }
}
