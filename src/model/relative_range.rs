//! Rows of the table of relative positions, by distance.

use lambert_config::run::Model;
use tch::{Kind, Tensor};

/// Relative positions of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeRange {
    /// Buckets on each side.
    pub buckets: i64,
    /// Maximum distance, tokens. Greater distances share the last bucket.
    pub positions: i64,
}

impl RelativeRange {
    /// Returns the range that the configuration specifies, if it has relative positions.
    pub fn of_model(model: &Model) -> Option<Self> {
        let (buckets, positions) = (model.position_buckets as i64, model.positions as i64);
        (buckets > 0).then_some(Self { buckets, positions })
    }

    /// Returns the rows of the table for distances of a query to a key, i64.
    pub fn rows(self, distances: &Tensor) -> RelativeRows {
        RelativeRows { forward: self.row(distances), backward: self.row(&distances.neg()) }
    }

    /// Half of the buckets belong to one distance each. The sizes of the others grow exponentially. The computation is that
    /// of transformers, in f32.
    fn row(self, distances: &Tensor) -> Tensor {
        let (half, magnitude) = (self.buckets / 2, magnitude(distances));
        let far = magnitude.clamp_min(half).to_kind(Kind::Float) / half as f64;
        let span = Tensor::from((self.positions - 1) as f64 / half as f64).to_kind(Kind::Float).log();
        let bucket = (far.log() / span * (half - 1) as f64).ceil() + half;
        let bucket = (bucket.to_kind(Kind::Int64) * distances.sign()).where_self(&magnitude.gt(half), distances);
        (bucket + self.buckets).clamp(0, 2 * self.buckets - 1)
    }
}

/// Returns the absolute values of integers.
pub fn magnitude(numbers: &Tensor) -> Tensor {
    numbers.maximum(&numbers.neg())
}

/// Rows of the table of relative positions, by distance in ascending order.
pub struct RelativeRows {
    /// Rows for the distance itself, i64 \[distances\].
    pub forward: Tensor,
    /// Rows for the negated distance.
    pub backward: Tensor,
}

impl RelativeRows {
    /// Copies the tensor handles, sharing their storage.
    pub fn shallow_clone(&self) -> Self {
        Self { forward: self.forward.shallow_clone(), backward: self.backward.shallow_clone() }
    }
}
