//! Notifications of a run's events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Event that can be notified: the `event` of a line of `lambert run --json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyEvent {
    /// An attempt starts.
    Start,
    /// The held-out loss was measured.
    Evaluation,
    /// A stage ends early.
    Plateau,
    /// The model grows.
    Grown,
    /// A checkpoint was committed.
    Checkpoint,
    /// An attempt failed; the workers restart.
    Restart,
    /// No rank reported; the start is repeated.
    Wait,
    /// A rank warns the user.
    Warning,
    /// The run diverged and rolls back.
    Rollback,
    /// The run ended under this coordinator.
    End,
}

impl NotifyEvent {
    /// Events that are notified by default.
    const DEFAULT: [Self; 5] = [Self::Restart, Self::Wait, Self::Rollback, Self::Plateau, Self::End];

    /// Returns the `event` of the line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Evaluation => "evaluation",
            Self::Plateau => "plateau",
            Self::Grown => "grown",
            Self::Checkpoint => "checkpoint",
            Self::Restart => "restart",
            Self::Wait => "wait",
            Self::Warning => "warning",
            Self::Rollback => "rollback",
            Self::End => "end",
        }
    }
}

/// Command that the coordinator runs at events: by default failures, restarts, rollbacks, plateaus and the end of the run.
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
    /// Events at which the command runs.
    #[serde(skip_serializing_if = "is_default_events")]
    #[schemars(!skip_serializing_if)]
    pub events: Vec<NotifyEvent>,
    /// Seconds after which the command is killed.
    #[serde(skip_serializing_if = "is_default_timeout")]
    #[schemars(!skip_serializing_if)]
    pub timeout_seconds: f64,
}

const TIMEOUT: f64 = 30.0;

fn is_default_events(events: &[NotifyEvent]) -> bool {
    events == NotifyEvent::DEFAULT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_default_timeout(seconds: &f64) -> bool {
    *seconds == TIMEOUT
}

impl Default for Notify {
    fn default() -> Self {
        Self { command: Vec::new(), events: NotifyEvent::DEFAULT.to_vec(), timeout_seconds: TIMEOUT }
    }
}
