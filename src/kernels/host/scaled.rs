//! Updates with a step size for each tensor. The update of a tensor is the Adam direction plus weight decay.
//!
//! - LAMB (arXiv 1904.00962, algorithm 2, with the details of NVIDIA's BERT recipe) multiplies the learning rate by
//!   the ratio of the weight norm to the update norm.
//! - StableAdamW (arXiv 2304.13013) divides the learning rate by the root mean square of `gradient / sqrt(v_hat)` if it is
//!   above 1.

use super::chunks::{self, Chunk, sum_of_squares};
use crate::kernels::StepScale;

/// Elements per block. The four buffers of one block fit in the CPU cache.
const BLOCK: usize = 2048;

/// Update `u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p`, `p -= learning_rate * step_scale * u`. Gradients are first
/// multiplied by `scale`. Trust ratios are clamped to `bounds`. Returns the step size of each parameter, which is the
/// learning rate times the step scale.
pub fn update(bounds: Option<[f64; 2]>, chunks: &mut [Chunk<'_>], scale: f32, threads: usize) -> Vec<f32> {
    let sums = chunks::for_each_chunk(chunks, threads, |chunk| directions(chunk, scale));
    let parameters = chunks.last().map_or(0, |chunk| chunk.parameter + 1);
    let mut totals = vec![(0.0, 0.0); parameters];
    for (chunk, (first, second)) in chunks.iter().zip(sums) {
        totals[chunk.parameter].0 += first;
        totals[chunk.parameter].1 += second;
    }
    let mut step_sizes = vec![0.0; parameters];
    for Chunk { parameter, constants, .. } in &*chunks {
        let (first, second) = totals[*parameter];
        let factor = match constants.step_scale {
            StepScale::Fixed => 1.0,
            StepScale::TrustRatio => trust_ratio(first.sqrt(), second.sqrt(), bounds),
            StepScale::Stable => (first / second).sqrt().max(1.0).recip(),
        };
        step_sizes[*parameter] = constants.learning_rate * factor as f32;
    }
    chunks::for_each_chunk(chunks, threads, |chunk| apply(step_sizes[chunk.parameter], chunk));
    step_sizes
}

/// Trust ratio of a tensor with weight norm `weights` and update norm `update`, clamped to `bounds`. If a norm is 0, the
/// ratio before clamping is 1.
fn trust_ratio(weights: f64, update: f64, bounds: Option<[f64; 2]>) -> f64 {
    let ratio = if weights > 0.0 && update > 0.0 { weights / update } else { 1.0 };
    bounds.map_or(ratio, |[min_ratio, max_ratio]| ratio.clamp(min_ratio, max_ratio))
}

/// Updates the moments and overwrites the gradients with `u`. Returns the sums of squares of the weights and of `u`, or
/// for StableAdamW the sum of squares of `gradient / max(sqrt(v_hat), eps)` and the number of elements.
fn directions(chunk: &mut Chunk<'_>, scale: f32) -> (f64, f64) {
    let (constants, slices) = (chunk.constants, &mut chunk.slices);
    let (mut first_sum, mut second_sum) = (0.0, 0.0);
    let mut relative = [0.0; BLOCK];
    let moments = slices.first.chunks_mut(BLOCK).zip(slices.second.chunks_mut(BLOCK));
    let blocks = slices.weights.chunks(BLOCK).zip(slices.gradients.chunks_mut(BLOCK)).zip(moments);
    for ((weights, gradients), (first, second)) in blocks {
        let elements = weights.iter().zip(&mut *gradients).zip(first).zip(second);
        if constants.step_scale == StepScale::Stable {
            let relative = &mut relative[..weights.len()];
            for ((((weight, gradient), first), second), relative) in elements.zip(&mut *relative) {
                let scaled = *gradient * scale;
                *gradient = constants.direction(scaled, first, second) + constants.weight_decay * *weight;
                *relative = scaled / constants.root(*second).max(constants.eps);
            }
            first_sum += sum_of_squares(relative);
            second_sum += relative.len() as f64;
        } else {
            for (((weight, gradient), first), second) in elements {
                *gradient = constants.direction(*gradient * scale, first, second) + constants.weight_decay * *weight;
            }
            first_sum += sum_of_squares(weights);
            second_sum += sum_of_squares(gradients);
        }
    }
    (first_sum, second_sum)
}

fn apply(step_size: f32, chunk: &mut Chunk<'_>) {
    for (weight, update) in chunk.slices.weights.iter_mut().zip(&*chunk.slices.gradients) {
        *weight -= step_size * *update;
    }
}
