//! Limits of restarting the ranks after failures.

use serde::{Deserialize, Serialize};

/// Limits of restarting the ranks after failures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// Failures within `window_minutes`, and attempts in a row without a new checkpoint, that are followed by a restart; one
    /// more gives the run up.
    pub limit: usize,
    /// Failures that are longer ago no longer count, unless no checkpoint has come since, minutes.
    pub window_minutes: f64,
    /// Time in which starts that no rank reports from are tried again, minutes.
    pub start_timeout_minutes: f64,
}

impl Default for Restart {
    fn default() -> Self {
        Self { limit: 5, window_minutes: 60.0, start_timeout_minutes: 60.0 }
    }
}
