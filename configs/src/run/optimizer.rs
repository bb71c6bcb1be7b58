//! Optimizer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Update rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// LAMB (arXiv 1904.00962).
    #[default]
    Lamb,
    /// Adam with decoupled weight decay.
    Adamw,
    /// AdamW that reduces the learning rate of a tensor while its gradients are larger than its second moment predicts
    /// (arXiv 2304.13013).
    StableAdamw,
    /// Adam of the original BERT: like `adamw`, but never with bias correction.
    AdamBert,
}

/// Optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Constant that is added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay. Biases and layer normalizations have no weight decay.
    pub weight_decay: f64,
    /// Divides the weight decay by the peak learning rate of the stage (full decoupling). Not for LAMB.
    ///
    /// Each update multiplies the weight decay by the learning rate. So the decay of an update at the peak is
    /// `weight_decay` itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub decay_relative_to_peak: bool,
    /// Corrects the bias of the moments, which are initialized with zero.
    pub bias_correction: bool,
    /// LAMB: also applies trust ratios to biases and layer normalizations.
    pub trust_undecayed: bool,
    /// LAMB: minimum and maximum trust ratio. Absent: no bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_ratio: Option<[f64; 2]>,
    /// Maximum L2 norm of the gradient. Larger gradients are clipped. 0: no clipping.
    pub clip_norm: f64,
}

impl Optimizer {
    /// Returns the settings for a stage with the given peak learning rate. Updates multiply the weight decay by the
    /// learning rate.
    #[must_use]
    pub fn of_stage(&self, peak: f64) -> Self {
        let divisor = if self.decay_relative_to_peak { peak } else { 1.0 };
        Self { weight_decay: self.weight_decay / divisor, ..self.clone() }
    }

    /// True if the moments are bias-corrected.
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
            decay_relative_to_peak: false,
            bias_correction: true,
            trust_undecayed: false,
            trust_ratio: None,
            clip_norm: 1.0,
        }
    }
}
