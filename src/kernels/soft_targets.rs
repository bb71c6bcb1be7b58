//! Soft targets of a teacher (DistilBERT, arXiv 1910.01108): the divergence between two distributions over the vocabulary.

use tch::{Kind, Tensor};

/// Parameters of [`Kernels::soft_targets`](super::Kernels::soft_targets).
#[derive(Debug, Clone, Copy)]
pub struct SoftTargetParams<'a> {
    /// Number of tokens of the vocabulary. Further logits of a row are padding.
    pub vocabulary: i64,
    /// Divides the logits.
    pub temperature: f64,
    /// Weight of each row, f32 \[n\]. `None`: 1.
    pub weights: Option<&'a Tensor>,
}

/// Loss and gradient of [`Kernels::soft_targets`](super::Kernels::soft_targets).
pub struct SoftTargetGradient {
    /// Sum over the rows, f32 \[\].
    pub loss: Tensor,
    /// Gradient of the loss for the logits of the student, \[n, width\], 0 for padding.
    pub gradient: Tensor,
}

/// Implements [`Kernels::soft_targets`](super::Kernels::soft_targets) with single libtorch operations. The gradient is f32.
pub fn with_operations([student, teacher]: [&Tensor; 2], params: &SoftTargetParams<'_>) -> SoftTargetGradient {
    let SoftTargetParams { vocabulary, temperature, weights } = *params;
    let softened = |logits: &Tensor| {
        let logits = logits.narrow(1, 0, vocabulary).to_kind(Kind::Float);
        (logits / temperature).log_softmax(-1, Kind::Float)
    };
    let padding = student.size()[1] - vocabulary;
    let (student, teacher) = (softened(student), softened(teacher));
    let probabilities = teacher.exp();
    let each = (&probabilities * (teacher - &student)).sum_dim_intlist(-1, false, Kind::Float);
    let (each, gradient) = (each * (temperature * temperature), (student.exp() - probabilities) * temperature);
    let (loss, gradient) = match weights {
        Some(weights) => ((each * weights).sum(Kind::Float), gradient * weights.unsqueeze(1)),
        None => (each.sum(Kind::Float), gradient),
    };
    let gradient = if padding > 0 { gradient.constant_pad_nd([0, padding]) } else { gradient };
    SoftTargetGradient { loss, gradient }
}
