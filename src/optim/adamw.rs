//! Adam with decoupled weight decay (arXiv 1711.05101). Without bias correction it is the Adam of the original BERT
//! (google-research/bert, optimization.py).

use super::chunks::{self, Chunk};

/// `p -= rate (m_hat / (sqrt(v_hat) + eps) + decay p)`.
pub(super) fn update(chunks: &mut [Chunk<'_>], threads: usize) {
    chunks::each(chunks, threads, |chunk| {
        let rule = chunk.rule;
        let decay = if chunk.decays { rule.weight_decay } else { 0.0 };
        let buffers = &mut chunk.buffers;
        let moments = buffers.first.iter_mut().zip(&mut *buffers.second);
        for ((weight, gradient), (first, second)) in buffers.weights.iter_mut().zip(&*buffers.gradients).zip(moments) {
            *weight -= rule.learning_rate * (rule.direction(*gradient, first, second) + decay * *weight);
        }
    });
}
