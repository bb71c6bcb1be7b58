//! Stage: a phase of training with one depth, dataset and learning rate schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Growth, MixtureDataset, Model, Plateau, StageObjective, TokenBudget};

/// Decay of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Linear.
    #[default]
    Linear,
    /// Polynomial of power `decay_power`.
    Polynomial,
    /// Half a cosine period.
    Cosine,
    /// `1 - sqrt(p)`, where p is the completed fraction of the decay.
    OneMinusSqrt,
    /// Inverse square root of the number of steps since the start of the warm-up. It never ends.
    InverseSqrt,
    /// Constant.
    Constant,
}

/// Stage of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stage {
    /// Name in output and records; required.
    pub name: String,
    /// Dataset, as folder or URL; required without `mixture`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Datasets of a mixture, in place of `data`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mixture: Vec<MixtureDataset>,
    /// Sets the weight of each dataset of the mixture to its number of samples to the power of this number.
    ///
    /// 1: shares are proportional to the numbers of samples. 0: equal shares. A number between them raises the shares of
    /// small datasets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixture_temperature: Option<f64>,
    /// Settings of `[objective]` that this stage replaces.
    #[serde(skip_serializing_if = "StageObjective::is_default")]
    pub objective: StageObjective,
    /// Number of encoder layers, not less than in the previous stage. Absent: `model.layers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// Initialization of new layers, if the previous stage has fewer layers.
    #[serde(skip_serializing_if = "Growth::is_default")]
    pub growth: Growth,
    /// Number of weight updates; required without `tokens`. With `plateau`, the maximum number.
    pub steps: u64,
    /// Number of tokens to train on, in place of `steps`. Padding does not count.
    ///
    /// At the start of a run, lambert replaces it by `steps`, from the mean length of the samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<f64>,
    /// Early stopping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau: Option<Plateau>,
    /// Samples per update, over all ranks.
    pub global_batch: usize,
    /// Ramp of the global batch size at the start of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ramp: Option<BatchRamp>,
    /// Maximum number of tokens in a micro-batch, padding included.
    ///
    /// `"auto"`: on a GPU, the largest number that fits into its memory, at most 65536. On a CPU, 4096.
    pub micro_batch_tokens: TokenBudget,
    /// Activation checkpointing: recomputes activations in the backward pass to save memory.
    ///
    /// Only the inputs of layers are kept. Training takes a third more computation and much less memory. Results differ
    /// only by rounding.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub recompute: bool,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Fraction of the steps of the stage for the linear warm-up.
    pub warmup: f64,
    /// Shape of the decay.
    pub decay: Decay,
    /// Fraction of the steps of the stage for the decay, at the end of the stage. Absent: all steps after the warm-up.
    ///
    /// Between warm-up and decay, the learning rate is constant (warmup-stable-decay).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_fraction: Option<f64>,
    /// Power of polynomial decay.
    pub decay_power: f64,
    /// Learning rate at the end of the decay. No effect with `constant`; with `inverse-sqrt`, the limit.
    pub learning_rate_end: f64,
    /// Resets the moments and update counts at the start of the stage.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub restart_optimizer: bool,
}

/// Linear ramp of the global batch size, from `start` samples at the first step to `global_batch` samples after `steps`
/// steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRamp {
    /// Number of samples of the first update; required.
    pub start: usize,
    /// Number of updates until the full global batch size; required.
    pub steps: u64,
}

impl Stage {
    /// Returns the number of encoder layers of this stage.
    pub fn depth(&self, model: &Model) -> usize {
        self.layers.unwrap_or(model.layers)
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            name: String::new(),
            data: String::new(),
            mixture: Vec::new(),
            mixture_temperature: None,
            objective: StageObjective::default(),
            layers: None,
            growth: Growth::default(),
            steps: 0,
            tokens: None,
            plateau: None,
            global_batch: 256,
            batch_ramp: None,
            micro_batch_tokens: TokenBudget::default(),
            recompute: false,
            learning_rate: 1e-4,
            warmup: 0.2,
            decay: Decay::Linear,
            decay_fraction: None,
            decay_power: 1.0,
            learning_rate_end: 0.0,
            restart_optimizer: false,
        }
    }
}
