//! Parameter tensor of an architecture.

use super::module::{Head, Role, TensorId};

/// Parameter tensor of an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Identity.
    pub id: TensorId,
    /// Role in initialization, weight decay and growth.
    pub role: Role,
    /// Name in the transformers model, for example `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// Shape; \[out, in\] for a matrix.
    pub shape: Vec<usize>,
    /// Number of padding rows at the end. `None` if the rows are not vocabulary tokens.
    pub padding: Option<usize>,
    /// Number of matrices of equal shape that are stacked in the rows, if an optimizer of matrices updates this tensor. 0 for
    /// vectors, and for tensors outside the layers.
    pub matrices: usize,
    /// True if this tensor directly follows the previous tensor in memory.
    pub is_fused_with_previous: bool,
    /// Head to which the tensor belongs, if any.
    pub head: Option<Head>,
    /// Number of segments whose backward passes must be complete before the gradient of this tensor is final. Segments
    /// are counted over all networks, in the order of the backward pass.
    pub final_after_segment: usize,
}
