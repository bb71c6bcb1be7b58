//! Events of a run, directives of the coordinator and failure kinds.

use serde::{Deserialize, Serialize};

use super::evaluation::Evaluation;

/// Request of the coordinator to the workers. Rank 0 forwards it to the other ranks, so that all ranks act after the
/// same step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directive {
    /// Continue training.
    #[default]
    Continue,
    /// Save a checkpoint after this step, then continue.
    Checkpoint,
    /// Save a checkpoint after this step, then exit with code 0.
    CheckpointAndStop,
}

/// One-time event of a run, shown to users and by `lambert status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// Training starts after `step` completed steps, either from scratch or from a checkpoint.
    Started {
        /// Completed steps.
        step: u64,
        /// Steps of all stages.
        steps: u64,
        /// Checkpoint from which training resumes. `None` if training starts at step 0.
        checkpoint: Option<String>,
        /// Newer checkpoints that failed verification, each with the reason.
        skipped_checkpoints: Vec<String>,
    },
    /// A checkpoint was committed.
    Checkpoint {
        /// Name, such as `step-000012000-a0003`.
        name: String,
        /// Step of the checkpoint.
        step: u64,
        /// Training pause, seconds.
        seconds: f64,
        /// Time from the snapshot of the state to the end of writing the manifest, seconds. Most of this time overlaps
        /// with training.
        #[serde(default)]
        written: f64,
    },
    /// An evaluation on the held-out dataset finished.
    Evaluation(Evaluation),
    /// The held-out loss reached a plateau, so the stage ends before its last step.
    Plateau {
        /// Completed steps of the run.
        step: u64,
        /// Stage that ends.
        stage: String,
        /// Completed steps of that stage.
        done: u64,
        /// New total number of steps of all stages.
        steps: u64,
    },
    /// The model has grown. It has more layers from this step on.
    Grown {
        /// Completed steps.
        step: u64,
        /// Layers before.
        from: usize,
        /// Layers after.
        to: usize,
        /// Stage that begins.
        stage: String,
    },
    /// Micro-batch size that this attempt chose for a stage whose configuration does not set one.
    MicroBatch {
        /// Name of the stage.
        stage: String,
        /// Maximum tokens per micro-batch.
        tokens: usize,
    },
    /// Warning for the user. Training continues.
    Warning {
        /// One sentence.
        message: String,
    },
    /// A checkpoint was not saved. The save is retried, so training continues or waits.
    SaveFailed {
        /// Warning for the user: the checkpoint, what happens next, and the error.
        message: String,
        /// The error with its causes.
        error: String,
    },
    /// Rollback after divergence. The workers exit cleanly, and a new attempt starts.
    RolledBack {
        /// Cause and consequence, for the user.
        message: String,
        /// Step at which the rollback was decided.
        #[serde(default)]
        step: u64,
        /// Last step that is kept. Checkpoints of later steps become invalid.
        #[serde(default, rename = "to")]
        last_kept: u64,
    },
    /// The worker has finished this attempt and exits with code 0.
    Finished {
        /// Completed steps.
        step: u64,
        /// True if the worker stopped on request before the last step of the run.
        stopped: bool,
    },
    /// The worker cannot continue and exits.
    Failed {
        /// Error message with the whole chain of causes.
        message: String,
        /// Class of the failure.
        kind: FailureKind,
        /// Ranks that did not take part in a failed collective operation. Empty if unknown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<usize>,
    },
}

/// Class of a worker failure. It decides whether the coordinator starts a new attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// A new attempt would fail in the same way, for example on a damaged shard.
    Permanent,
    /// A new attempt would fail now but may succeed hours later, for example when the store rejects checkpoints.
    RetryLater,
    /// The command line or the configuration is invalid.
    Usage,
    /// A new attempt may succeed, for example after the store was unreachable.
    Transient,
    /// The failure is specific to this host and may be transient, for example a missing mount or a disk read error.
    Host,
    /// A newer attempt of another coordinator holds the lease.
    LeaseLost,
}
