//! Adam with decoupled weight decay (arXiv 1711.05101). Without bias correction, this is the Adam of the original BERT
//! code (google-research/bert, optimization.py).

use super::chunks::{self, Chunk};

/// AdamW update `p -= learning_rate * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)`.
/// Gradients are first multiplied by `scale`.
pub fn update(chunks: &mut [Chunk<'_>], scale: f32, threads: usize) {
    chunks::for_each_chunk(chunks, threads, |chunk| {
        let (constants, slices) = (chunk.constants, &mut chunk.slices);
        let moments = slices.first.iter_mut().zip(&mut *slices.second);
        for ((weight, gradient), (first, second)) in slices.weights.iter_mut().zip(&*slices.gradients).zip(moments) {
            let direction = constants.direction(*gradient * scale, first, second);
            *weight -= constants.learning_rate * (direction + constants.weight_decay * *weight);
        }
    });
}
