//! Restart limits after failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Restart limits after failures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RestartLimits {
    /// Maximum number of failures within `window_minutes`. With one more failure, the run fails.
    ///
    /// The key also limits the number of consecutive attempts without a new checkpoint.
    pub limit: usize,
    /// Minutes after which a failure no longer counts toward `limit`.
    pub window_minutes: f64,
    /// Maximum time, in minutes, for which attempts are retried while no rank reports.
    pub start_timeout_minutes: f64,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self { limit: 5, window_minutes: 60.0, start_timeout_minutes: 60.0 }
    }
}
