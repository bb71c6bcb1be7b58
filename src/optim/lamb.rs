//! LAMB (arXiv 1904.00962, algorithm 2, with the details of the NVIDIA recipe): Adam's direction plus weight decay,
//! scaled for each tensor by the ratio of the weights' norm to the update's.

use super::{Part, Rule, sum_of_squares};

/// `u = m_hat / (sqrt(v_hat) + eps) + decay p`, then `p -= rate |p| / |u| u`. Tensors without weight decay have a
/// ratio of 1, and so has one whose weights or update are all zero.
pub(super) fn update(rule: &Rule, part: Part<'_>) {
    let Part { weights, gradients, first, second, decays } = part;
    let weights_norm = sum_of_squares(weights).sqrt();
    let decay = if decays { rule.weight_decay } else { 0.0 };
    for (((weight, gradient), first), second) in weights.iter().zip(&mut *gradients).zip(first).zip(second) {
        *gradient = rule.direction(*gradient, first, second) + decay * *weight;
    }
    let update_norm = sum_of_squares(gradients).sqrt();
    let trusted = decays && weights_norm > 0.0 && update_norm > 0.0;
    let ratio = if trusted { (weights_norm / update_norm) as f32 } else { 1.0 };
    let rate = rule.learning_rate * ratio;
    for (weight, update) in weights.iter_mut().zip(gradients) {
        *weight -= rate * *update;
    }
}
