//! A run: a model, an objective, an optimizer, and a list of stages.

mod all_reduce;
mod budget;
mod check;
mod cluster;
mod device;
mod growth;
mod guard;
mod metrics;
mod model;
mod objective;
mod optimizer;
mod plateau;
mod renamed;
mod restart;
mod stage;

use serde::{Deserialize, Serialize};

pub use crate::prep::Pair;
pub use crate::slurm::Slurm;
pub use all_reduce::{AllReduce, Backend, LEAVES, ReduceDtype};
pub use budget::TokenBudget;
pub use cluster::{Cluster, ControlChannel, DatasetCache, Host, LauncherKind, Limits};
pub use device::{Device, DeviceKind};
pub use growth::{Growth, Moments, Order};
pub use guard::{DamagedShard, Guard, Test};
pub use metrics::Metrics;
pub use model::{Activation, Attention, Family, Model, Norm, Precision};
pub use objective::{MaskToken, MaskUnit, Masking, Objective};
pub use optimizer::{Optimizer, OptimizerKind};
pub use plateau::Plateau;
pub use renamed::RENAMED;
pub use restart::Restart;
pub use stage::{BatchRamp, Decay, Stage};

/// A run, as its TOML file says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Name and seed.
    pub run: Run,
    /// The encoder.
    pub model: Model,
    /// What is learnt.
    pub objective: Objective,
    /// How weights are updated.
    pub optimizer: Optimizer,
    /// What is done in what order.
    pub stage: Vec<Stage>,
    /// Held-out loss on the way.
    pub evaluation: Evaluation,
    /// What is measured on the way.
    pub metrics: Metrics,
    /// When to save.
    pub checkpoint: Checkpoint,
    /// The device of each rank.
    pub device: Device,
    /// The machines.
    pub cluster: Cluster,
    /// The queue.
    pub slurm: Slurm,
    /// What keeps the run on its way.
    pub guard: Guard,
    /// Faults on purpose, for tests only.
    #[serde(skip_serializing_if = "Test::is_none")]
    pub test: Test,
}

impl RunConfig {
    /// Encoder layers of a stage; those of the model where there is no such stage.
    pub fn depth(&self, stage: usize) -> usize {
        self.stage.get(stage).map_or(self.model.layers, |stage| stage.depth(&self.model))
    }
}

/// Name and seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// For people.
    pub name: String,
    /// Seed of weights, order, masks and dropout.
    pub seed: u64,
    /// The checkpoint of another run whose weights this one starts with, `RUN/checkpoints/step-...`; none: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether the moments and the count of updates come from there, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_optimizer: bool,
}

impl Default for Run {
    fn default() -> Self {
        Self { name: "run".to_owned(), seed: 1, from: None, from_optimizer: false }
    }
}

/// Held-out loss on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    /// The held-out dataset; empty for none.
    pub data: String,
    /// Steps between evaluations.
    pub every_steps: u64,
    /// Samples an evaluation at most; 0 for all.
    pub samples: u64,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { data: String::new(), every_steps: 1000, samples: 2048 }
    }
}

/// When to save, what to keep, and how long to do without a store. A checkpoint is due as soon as one of the two
/// intervals says so, and at the end of each stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Steps between checkpoints; 0 turns this off.
    pub every_steps: u64,
    /// Minutes between checkpoints; 0 turns this off.
    pub every_minutes: f64,
    /// How many of the newest are kept.
    pub keep: usize,
    /// The first checkpoint at or after each multiple of this is kept for ever; 0 turns this off.
    pub keep_every_steps: u64,
    /// Each evaluation whose loss is the lowest so far is followed by a checkpoint, and the best of them is kept.
    pub keep_best: bool,
    /// A save that takes longer than this many minutes ends the run, and so do saves that fail for as long; until then they
    /// are tried again. 0: the first failure ends the run, and the limit of a save is `cluster.limits.save_seconds`.
    pub give_up_minutes: f64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every_steps: 1000,
            every_minutes: 15.0,
            keep: 3,
            keep_every_steps: 0,
            keep_best: false,
            give_up_minutes: 120.0,
        }
    }
}
