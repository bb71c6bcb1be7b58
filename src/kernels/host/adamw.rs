//! Adam with decoupled weight decay (arXiv 1711.05101). Without bias correction it is the Adam of the original BERT
//! (google-research/bert, optimization.py).

use super::chunks::{self, Chunk};

/// `p -= rate (m_hat / (sqrt(v_hat) + eps) + decay p)`, of gradients that are multiplied with `scale`.
pub fn update(chunks: &mut [Chunk<'_>], scale: f32, threads: usize) {
    chunks::each(chunks, threads, |chunk| {
        let (rule, slices) = (chunk.rule, &mut chunk.slices);
        let moments = slices.first.iter_mut().zip(&mut *slices.second);
        for ((weight, gradient), (first, second)) in slices.weights.iter_mut().zip(&*slices.gradients).zip(moments) {
            let direction = rule.direction(*gradient * scale, first, second);
            *weight -= rule.learning_rate * (direction + rule.weight_decay * *weight);
        }
    });
}
