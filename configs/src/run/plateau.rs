//! Early stopping of a stage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Early stopping on the held-out loss. The loss is flat after `evaluations` evaluations in a row without an
/// improvement by `min_delta` over the stage's best loss, where smaller improvements do not lower the best.
/// (`evaluations` is often called patience.)
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plateau {
    /// Consecutive evaluations without an improvement.
    pub evaluations: u64,
    /// Minimum improvement, nats.
    pub min_delta: f64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { evaluations: 3, min_delta: 0.01 }
    }
}
