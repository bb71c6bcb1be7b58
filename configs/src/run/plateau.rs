//! Early stopping of a stage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Early stopping on the held-out loss. A stage ends early after `evaluations` consecutive evaluations without an
/// improvement by more than `min_delta` over the best loss of the stage. A smaller improvement does not change the best
/// loss. (`evaluations` is often called patience.)
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plateau {
    /// Number of consecutive evaluations without an improvement.
    pub evaluations: u64,
    /// Minimum improvement, nats.
    pub min_delta: f64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { evaluations: 3, min_delta: 0.01 }
    }
}
