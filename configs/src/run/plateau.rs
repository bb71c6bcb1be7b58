//! When a stage ends before its last step.

use serde::{Deserialize, Serialize};

/// The held-out MLM loss is flat where `evaluations` in a row have not brought it `min_delta` below the last loss of the stage that did, or
/// its first. (Elsewhere this is called early stopping, and the number of evaluations its patience.)
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plateau {
    /// Evaluations in a row.
    pub evaluations: u64,
    /// What counts as lower, nats.
    pub min_delta: f64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { evaluations: 3, min_delta: 0.01 }
    }
}
