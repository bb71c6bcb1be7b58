//! A run: a model, an objective, an optimizer, and a list of stages.

mod check;
mod growth;
mod guard;

use serde::{Deserialize, Serialize};

pub use crate::prep::Pair;
pub use growth::{Growth, Moments, Order};
pub use guard::{DamagedShard, Guard, Test};

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
    /// When to save.
    pub checkpoint: Checkpoint,
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

/// Where layer normalisations stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Behind each sum, as in the original.
    #[default]
    Post,
    /// Before attention and feed-forward layer, and once at the end (Megatron-BERT, arXiv 1909.08053).
    Pre,
}

/// The activation of the feed-forward layers and the MLM head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `x Phi(x)`.
    #[default]
    Gelu,
    /// Its approximation by a hyperbolic tangent.
    GeluTanh,
}

/// What the model computes with. Weights, gradients, moments, losses and everything that is summed over ranks are f32 either
/// way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    Fp32,
    /// 16 bits, 8 of them for the exponent (bfloat16).
    Bf16,
}

/// The encoder. Defaults are BERT-base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Encoder layers.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Longest sequence that has a position embedding.
    pub positions: usize,
    /// What it computes with.
    pub precision: Precision,
    /// Where layer normalisations stand.
    pub norm: Norm,
    /// The activation of the feed-forward layers and the MLM head.
    pub activation: Activation,
    /// The MLM head's decoder is the table of token embeddings.
    pub tied_decoder: bool,
    /// The tables of the vocabulary are filled up to a multiple of this many rows, which matrix units of GPUs ask for (8);
    /// 1 adds none. Such a row is zero, and never predicted.
    pub pad_vocabulary_to: usize,
    /// Dropout of embeddings, attention weights and layer outputs.
    pub dropout: f64,
    /// Dropout of attention weights, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f64>,
    /// Standard deviation of the initial weights (truncated normal).
    pub initializer_range: f64,
    /// Epsilon of the layer normalisations.
    pub layer_norm_eps: f64,
}

impl Model {
    /// Rows of the tables of a vocabulary of so many pieces.
    pub fn rows_of(&self, vocabulary: usize) -> usize {
        vocabulary.next_multiple_of(self.pad_vocabulary_to.max(1))
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            layers: 12,
            hidden: 768,
            heads: 12,
            intermediate: 3072,
            positions: 512,
            precision: Precision::Fp32,
            norm: Norm::Post,
            activation: Activation::Gelu,
            tied_decoder: true,
            pad_vocabulary_to: 1,
            dropout: 0.1,
            attention_dropout: None,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
        }
    }
}

/// When masks change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Masking {
    /// New masks each epoch.
    #[default]
    Dynamic,
    /// The same masks each epoch.
    Static,
}

/// What is masked together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaskUnit {
    /// Single pieces.
    #[default]
    Piece,
    /// Whole words.
    Word,
    /// Spans of one to ten words (arXiv 1907.10529), each replaced alike.
    Span,
}

/// What stands in the place of four in five masked tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaskToken {
    /// \[MASK\].
    #[default]
    Mask,
    /// \[UNK\].
    Unk,
}

/// What is learnt: masked language modelling and a pair objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Objective {
    /// The pair objective; must be what the dataset says.
    pub pair: Pair,
    /// When masks change.
    pub masking: Masking,
    /// Static masking: different masks of a sample; they come in turn, an epoch each.
    pub static_masks: usize,
    /// What is masked together.
    pub mask_unit: MaskUnit,
    /// What stands in the place of four in five masked tokens.
    pub mask_token: MaskToken,
    /// Share of a sample's tokens, the specials counted, that is masked.
    pub mask_probability: f64,
    /// Masked tokens a sample at most; 0 for no limit.
    pub max_predictions: usize,
}

impl Objective {
    /// Tokens to hide in a sample of `length` tokens, specials counted: `min(max_predictions, max(1, round(p x length)))`,
    /// as Google's create_pretraining_data. Fewer are hidden where the sample has fewer that may be, or where no word is
    /// short enough for what is left.
    pub fn predictions(&self, length: usize) -> usize {
        let share = ((self.mask_probability * length as f64).round() as usize).max(1);
        if self.max_predictions == 0 { share } else { share.min(self.max_predictions) }
    }
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            pair: Pair::Nsp,
            masking: Masking::Dynamic,
            static_masks: 1,
            mask_unit: MaskUnit::Piece,
            mask_token: MaskToken::Mask,
            mask_probability: 0.15,
            max_predictions: 20,
        }
    }
}

/// The update rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// LAMB (arXiv 1904.00962).
    #[default]
    Lamb,
    /// Adam with decoupled weight decay.
    Adamw,
    /// The Adam of the original BERT: the same without bias correction, whatever `bias_correction` says.
    AdamBert,
}

/// How weights are updated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// The update rule.
    pub kind: OptimizerKind,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay; biases and layer normalisations have none.
    pub weight_decay: f64,
    /// Divide the moments by what they lack while there are few of them.
    pub bias_correction: bool,
    /// LAMB: biases and layer normalisations have a trust ratio too.
    pub trust_undecayed: bool,
    /// LAMB: the least and the greatest trust ratio; unbounded if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_ratio: Option<[f64; 2]>,
    /// The gradient is scaled down to this L2 norm when above it; 0 turns it off.
    pub clip_norm: f64,
}

impl Optimizer {
    /// Whether the moments are corrected for what they lack.
    pub fn corrects_bias(&self) -> bool {
        self.bias_correction && self.kind != OptimizerKind::AdamBert
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Lamb,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-6,
            weight_decay: 0.01,
            bias_correction: true,
            trust_undecayed: false,
            trust_ratio: None,
            clip_norm: 1.0,
        }
    }
}

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Polynomial of power 1.
    #[default]
    Linear,
    /// Polynomial of `decay_power`.
    Polynomial,
    /// Half a cosine.
    Cosine,
    /// Not at all.
    Constant,
}

/// One stage of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// For people and for the records.
    pub name: String,
    /// The dataset, a folder or URL.
    pub data: String,
    /// Encoder layers; `model.layers` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// How the new layers are made, if the stage before has fewer.
    #[serde(skip_serializing_if = "Growth::is_default")]
    pub growth: Growth,
    /// Weight updates.
    pub steps: u64,
    /// Samples an update.
    pub global_batch: usize,
    /// Smaller global batches at the stage's beginning; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ramp: Option<BatchRamp>,
    /// Tokens of a micro-batch at most, padding counted.
    pub micro_batch_tokens: usize,
    /// Keep only what goes into each layer on the way forward, and compute the rest again on the way back: a third more
    /// work for a fraction of the memory, and the same result.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recompute: bool,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Share of the stage's steps in which the learning rate rises linearly.
    pub warmup: f64,
    /// How it falls afterwards.
    pub decay: Decay,
    /// Power of a polynomial decay.
    pub decay_power: f64,
    /// Learning rate at the stage's end.
    pub learning_rate_end: f64,
    /// Whether moments and the count of updates begin anew with this stage; they go on otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restart_optimizer: bool,
}

/// A global batch that grows: from `start` at the stage's first step to `global_batch` after `steps` steps, in a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchRamp {
    /// Samples of the first update.
    pub start: usize,
    /// Updates until the whole global batch is reached.
    pub steps: u64,
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            name: String::new(),
            data: String::new(),
            layers: None,
            growth: Growth::default(),
            steps: 0,
            global_batch: 256,
            batch_ramp: None,
            micro_batch_tokens: 4096,
            recompute: false,
            learning_rate: 1e-4,
            warmup: 0.1,
            decay: Decay::Linear,
            decay_power: 1.0,
            learning_rate_end: 0.0,
            restart_optimizer: false,
        }
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
    /// Saves that have failed for so many minutes on end stop the run; until then they are tried again.
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

/// How ranks exchange gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// NCCL on GPUs, MPI between several ranks on CPUs, nothing for one rank.
    #[default]
    Auto,
    /// One rank in one process.
    Local,
    /// MPI all-reduce.
    Mpi,
    /// NCCL all-reduce.
    Nccl,
}

/// Where tensors live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// A GPU where there is one.
    #[default]
    Auto,
    /// Main memory.
    Cpu,
    /// A GPU.
    Cuda,
}

/// The machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Worker processes in all.
    pub ranks: usize,
    /// How ranks exchange gradients.
    pub backend: Backend,
    /// Where tensors live.
    pub device: Device,
    /// CPU threads of a rank.
    pub threads: usize,
    /// How often a failed attempt is started again before the run is given up; progress resets the count.
    pub restarts: usize,
    /// Arguments added to mpirun's command line.
    pub mpirun_arguments: Vec<String>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            ranks: 1,
            backend: Backend::Auto,
            device: Device::Auto,
            threads: 1,
            restarts: 5,
            mpirun_arguments: Vec::new(),
        }
    }
}

/// The queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Slurm partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Time limit, as Slurm writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
}

impl Stage {
    /// Encoder layers of this stage.
    pub fn depth(&self, model: &Model) -> usize {
        self.layers.unwrap_or(model.layers)
    }
}
