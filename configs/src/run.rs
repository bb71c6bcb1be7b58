//! Training run: model, objective, optimizer and a list of stages.

mod all_reduce;
mod budget;
mod check;
mod cluster;
mod device;
mod evaluation;
mod family;
mod growth;
mod guard;
mod metrics;
mod mixture;
mod model;
mod notify;
mod objective;
mod optimizer;
mod plateau;
mod prometheus;
mod rank_cpus;
mod renamed;
mod replaced_tokens;
mod restart;
mod stage;
mod teacher;
mod watch;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::prep::Pair;
pub use crate::slurm::Slurm;
pub use all_reduce::{AllReduce, Backend, CANONICAL_SHARDS, ReduceDtype};
pub use budget::TokenBudget;
pub use cluster::{Cluster, ControlChannel, DatasetCache, Host, LauncherKind, Limits};
pub use device::{Device, DeviceKind, Unpadded};
pub use evaluation::{Evaluation, HeldOutDataset};
pub use family::Family;
pub use growth::{Growth, GrowthOrder, Moments};
pub use guard::{DamagedShard, FaultInjection, Guard};
pub use metrics::Metrics;
pub use mixture::MixtureDataset;
pub use model::{Activation, Attention, FunctionKey, Model, Norm, NormKind, Precision};
pub use notify::{Notify, NotifyEvent};
pub use objective::{MaskToken, MaskUnit, Masking, Objective, StageObjective};
pub use optimizer::{Muon, MuonPrecision, MuonScale, Optimizer, OptimizerKind};
pub use plateau::Plateau;
pub use prometheus::Prometheus;
pub use renamed::RENAMED;
pub use replaced_tokens::ReplacedTokens;
pub use restart::RestartLimits;
pub use stage::{BatchRamp, Decay, Stage};
pub use teacher::{Teacher, TeacherInfo};
pub use watch::Watch;

/// Configuration of a training run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Name, seed and initial weights.
    pub run: Run,
    /// Encoder.
    pub model: Model,
    /// Training objective.
    pub objective: Objective,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Stages, in order.
    pub stage: Vec<Stage>,
    /// Evaluation on held-out data.
    pub evaluation: Evaluation,
    /// Optional metrics.
    pub metrics: Metrics,
    /// Notifications.
    #[serde(skip_serializing_if = "is_default")]
    pub notify: Notify,
    /// Metrics for Prometheus.
    #[serde(skip_serializing_if = "is_default")]
    pub prometheus: Prometheus,
    /// Web page of the run.
    #[serde(skip_serializing_if = "is_default")]
    pub watch: Watch,
    /// Checkpoint schedule and retention.
    pub checkpoint: Checkpoint,
    /// Device of each rank.
    pub device: Device,
    /// Hosts, processes and their limits.
    pub cluster: Cluster,
    /// Slurm options.
    pub slurm: Slurm,
    /// Divergence guard.
    pub guard: Guard,
    /// Fault injection, for tests only.
    #[serde(skip_serializing_if = "FaultInjection::is_none")]
    pub test: FaultInjection,
}

/// True if a section has only defaults; the stored configuration leaves it out, for workers of other versions.
fn is_default<T: Default + PartialEq>(section: &T) -> bool {
    *section == T::default()
}

impl RunConfig {
    /// Returns the configuration as TOML.
    ///
    /// # Errors
    /// An integer exceeds `i64`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Returns the configuration as a table of sections.
    ///
    /// # Errors
    /// An integer exceeds `i64`.
    pub fn to_table(&self) -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(self)
    }

    /// Returns the number of encoder layers of a stage. Returns `model.layers` if the stage does not exist.
    pub fn depth(&self, stage: usize) -> usize {
        self.stage.get(stage).map_or(self.model.layers, |stage| stage.depth(&self.model))
    }

    /// Returns the objective of evaluations: the one of `[objective]` with the mask probability of `[evaluation]`, and without
    /// frequencies and phrases, so that the losses of different runs can be compared.
    pub fn evaluation_objective(&self) -> Objective {
        let mask_probability = self.evaluation.mask_probability.unwrap_or(self.objective.mask_probability);
        Objective { mask_probability, mask_frequency_exponent: 0.0, phrases: None, ..self.objective.clone() }
    }
}

/// Name, seed and initial weights of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Name in messages and records.
    pub name: String,
    /// Seed of initial weights, sample order, masks and dropout.
    pub seed: u64,
    /// Checkpoint of another run, from which the initial weights are loaded. Absent: random weights.
    ///
    /// The value has the form `RUN/checkpoints/step-...`, or `hf:FOLDER` for a Hugging Face Transformers folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Also loads the optimizer moments and update counts from the checkpoint `run.from`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub from_optimizer: bool,
    /// Keys of `[model]` in which the model may differ from that of `run.from`, such as `rotary_base`.
    ///
    /// They change what the model computes, but no shapes. Without this key, a difference is an error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub from_changes: Vec<FunctionKey>,
}

impl Default for Run {
    fn default() -> Self {
        Self { name: "run".to_owned(), seed: 1, from: None, from_optimizer: false, from_changes: Vec::new() }
    }
}

/// Checkpoint schedule, retention and store timeout. A checkpoint is due when either interval has elapsed, and at the
/// end of each stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Steps between checkpoints. 0: no checkpoints by number of steps.
    pub every_steps: u64,
    /// Tokens between checkpoints, in place of `every_steps`.
    ///
    /// At the start of a run, lambert replaces it by `every_steps`, from the mean number of tokens of a step of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_tokens: Option<f64>,
    /// Minutes between checkpoints. 0: no checkpoints by time.
    pub every_minutes: f64,
    /// Number of newest checkpoints to keep.
    pub keep: usize,
    /// Permanently keeps the first checkpoint at or after each multiple of this number of steps. 0: keeps none.
    pub keep_every_steps: u64,
    /// Saves a checkpoint after each evaluation with the lowest loss so far, and keeps the best checkpoint.
    ///
    /// Needs `evaluation.data`.
    pub keep_best: bool,
    /// Minutes after which a save in progress, or a series of failed saves, ends the run.
    ///
    /// Until then, failed saves are retried. A warning appears after a tenth of this time. With 0, the first failed
    /// save ends the run, and only `cluster.limits.save_seconds` limits the duration of a save.
    pub give_up_minutes: f64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every_steps: 1000,
            every_tokens: None,
            every_minutes: 15.0,
            keep: 3,
            keep_every_steps: 0,
            keep_best: false,
            give_up_minutes: 120.0,
        }
    }
}
