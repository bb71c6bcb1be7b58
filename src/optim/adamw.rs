//! Adam with decoupled weight decay (arXiv 1711.05101) and bias correction.

use super::{Part, Rule};

/// `p -= rate (m_hat / (sqrt(v_hat) + eps) + decay p)`.
pub(super) fn update(rule: &Rule, part: Part<'_>) {
    let Part { weights, gradients, first, second, decays } = part;
    let decay = if decays { rule.weight_decay } else { 0.0 };
    for (((weight, gradient), first), second) in weights.iter_mut().zip(gradients).zip(first).zip(second) {
        *weight -= rule.learning_rate * (rule.direction(*gradient, first, second) + decay * *weight);
    }
}
