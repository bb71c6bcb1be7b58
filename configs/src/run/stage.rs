//! A stage: a length of training at one depth, on one dataset, with one schedule.

use serde::{Deserialize, Serialize};

use super::{Growth, Model, Plateau, TokenBudget};

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
    /// Weight updates; with `plateau` at most so many.
    pub steps: u64,
    /// When the stage ends before its last step; never if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau: Option<Plateau>,
    /// Samples an update.
    pub global_batch: usize,
    /// Smaller global batches at the stage's beginning; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ramp: Option<BatchRamp>,
    /// Tokens of a micro-batch at most, padding counted; `"auto"`: the largest that fits into the card.
    pub micro_batch_tokens: TokenBudget,
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

impl Stage {
    /// Encoder layers of this stage.
    pub fn depth(&self, model: &Model) -> usize {
        self.layers.unwrap_or(model.layers)
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            name: String::new(),
            data: String::new(),
            layers: None,
            growth: Growth::default(),
            steps: 0,
            plateau: None,
            global_batch: 256,
            batch_ramp: None,
            micro_batch_tokens: TokenBudget::default(),
            recompute: false,
            learning_rate: 1e-4,
            warmup: 0.2,
            decay: Decay::Linear,
            decay_power: 1.0,
            learning_rate_end: 0.0,
            restart_optimizer: false,
        }
    }
}
