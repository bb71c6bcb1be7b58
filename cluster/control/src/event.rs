//! What happens once in a run, and what the coordinator wants.

use serde::{Deserialize, Serialize};

use super::record::Evaluation;

/// What the coordinator wants of the ranks. Rank 0 passes it on, so that all act at the same step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directive {
    /// Go on.
    #[default]
    Continue,
    /// Save a checkpoint after this step, then go on.
    Checkpoint,
    /// Save a checkpoint after this step, then exit with the exit code for a stop.
    CheckpointAndStop,
}

/// Something that happened once, for people and for `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// Training starts at `step`: from nothing, or from a checkpoint.
    Started {
        /// Steps finished so far.
        step: u64,
        /// Steps of all stages.
        steps: u64,
        /// The checkpoint that it goes on from.
        checkpoint: Option<String>,
        /// Newer checkpoints that did not verify, each with the reason.
        passed_over: Vec<String>,
    },
    /// A checkpoint was committed.
    Checkpoint {
        /// Its name, as `step-000012000-a0003`.
        name: String,
        /// Its step.
        step: u64,
        /// How long training paused for it.
        seconds: f64,
        /// From the copy of the state to the manifest, most of it beside the training.
        #[serde(default)]
        written: f64,
    },
    /// The held-out loss was measured.
    Evaluation(Evaluation),
    /// The held-out loss is flat: a stage ends before its last step.
    Plateau {
        /// Steps finished.
        step: u64,
        /// The stage that ends.
        stage: String,
        /// Steps of it.
        done: u64,
        /// Steps of all stages, now.
        steps: u64,
    },
    /// The model has more layers from here on.
    Grown {
        /// Steps finished.
        step: u64,
        /// Layers before.
        from: usize,
        /// Layers now.
        to: usize,
        /// The stage that begins.
        stage: String,
    },
    /// How large micro-batches are in this attempt, in a stage that leaves it open.
    MicroBatch {
        /// The stage.
        stage: String,
        /// Tokens of a micro-batch at most.
        tokens: usize,
    },
    /// Something a person should know; training goes on.
    Warning {
        /// One sentence.
        message: String,
    },
    /// The run goes back and around what derailed it: the workers leave in good order, for a new attempt.
    RolledBack {
        /// What happened and what follows.
        message: String,
        /// The step at which that was decided.
        #[serde(default)]
        step: u64,
        /// Steps that stay: checkpoints of more are undone.
        #[serde(default)]
        to: u64,
    },
    /// The worker is done with this attempt in good order and exits with 0.
    Finished {
        /// Steps finished.
        step: u64,
        /// It was told to stop; the run has more steps.
        stopped: bool,
    },
    /// This rank cannot go on and exits.
    Failed {
        /// The whole chain of causes.
        message: String,
        /// What a new attempt may hope for.
        fault: Fault,
    },
}

/// What kind of failure ended a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A new attempt would meet it again: a damaged shard.
    Lasting,
    /// A new attempt would meet it again soon, and perhaps not hours later: a store that takes no checkpoint.
    Later,
    /// The command line or the configuration is wrong.
    Usage,
    /// A new attempt may be spared it: a store that was away.
    Passing,
    /// It is this host's, and may pass: a mount that is missing, a disk that fails to read.
    Host,
    /// A newer attempt, of another coordinator, holds the run.
    LeaseLost,
}
