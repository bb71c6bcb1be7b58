//! A parameter of an architecture.

use super::module::{Head, Role, TensorId};

/// A parameter of an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its identity.
    pub id: TensorId,
    /// What it is for.
    pub role: Role,
    /// Its name in transformers' model, such as `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<usize>,
    /// Its last rows that stand for no token of the vocabulary; `None` if its rows are not tokens.
    pub padding: Option<usize>,
    /// Whether it lies directly behind the tensor before it.
    pub joined: bool,
    /// The head that it is part of, if it is in one.
    pub head: Option<Head>,
    /// The number of segments, of all networks, that the backward pass goes through until the gradient of this tensor is final.
    pub final_after: usize,
}
