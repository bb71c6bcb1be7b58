//! Notifications of a run's events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Command that the coordinator runs at failures, restarts, rollbacks, plateaus and the end of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// Program and arguments, e.g. `["./notify.sh"]`; empty: none.
    ///
    /// It reads the event as a JSON line on standard input: the line that `lambert run --json` prints, with the run's
    /// `name` and URL (`run`). A relative path starts at the coordinator's working directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub command: Vec<String>,
    /// Seconds after which the command is killed.
    #[serde(skip_serializing_if = "is_default_timeout")]
    #[schemars(!skip_serializing_if)]
    pub timeout_seconds: f64,
}

const TIMEOUT: f64 = 30.0;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_default_timeout(seconds: &f64) -> bool {
    *seconds == TIMEOUT
}

impl Default for Notify {
    fn default() -> Self {
        Self { command: Vec::new(), timeout_seconds: TIMEOUT }
    }
}
