//! Cross-entropy of predictions over the vocabulary.

use tch::Tensor;

/// Targets of [`Kernels::cross_entropy`](super::Kernels::cross_entropy).
#[derive(Debug, Clone, Copy)]
pub struct TokenTargets<'a> {
    /// Number of tokens of the vocabulary. Further logits of a row are padding.
    pub vocabulary: i64,
    /// Token of each row, i64 \[n\]. With a token outside of the vocabulary, the loss is not a number.
    pub labels: &'a Tensor,
    /// Factor on the cross-entropy of each row, f32 \[n\]. `None`: 1.
    pub factors: Option<&'a Tensor>,
}

/// Result of [`Kernels::cross_entropy`](super::Kernels::cross_entropy).
pub struct CrossEntropy {
    /// Sum over the rows, f32 \[\], differentiable.
    pub loss: Tensor,
    /// Number of rows in which the label is the first token with the largest logit, i64 \[\].
    pub correct: Tensor,
}
