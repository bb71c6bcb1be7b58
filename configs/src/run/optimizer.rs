//! How weights are updated.

use serde::{Deserialize, Serialize};

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
