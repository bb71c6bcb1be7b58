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
    /// Muon for the matrices of the layers: the update is the orthogonalized momentum of a matrix. AdamW for embeddings, heads
    /// and vectors.
    Muon,
}

/// Data type of the matrix products of Muon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MuonPrecision {
    /// bf16.
    #[default]
    Bf16,
    /// f32; TF32 with `model.precision = "tf32"`.
    Fp32,
}

/// Scale of the updates of Muon. A matrix has the shape \[m, n\].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MuonScale {
    /// `0.2 * sqrt(max(m, n))`: about the update size of AdamW, so that its learning rates can be used (arXiv 2502.16982).
    #[default]
    Adamw,
    /// `sqrt(max(1, m / n))`, as in the first publication of Muon.
    Original,
}

/// Settings of Muon. `beta1`, `beta2` and `eps` apply to the parameters that AdamW updates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Muon {
    /// Decay rate of the momentum.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Number of Newton-Schulz iterations of an orthogonalization, at most 100.
    pub iterations: u32,
    /// Data type of the iterations.
    pub precision: MuonPrecision,
    /// Scale of the updates.
    pub scale: MuonScale,
    /// Learning rate of AdamW, divided by the learning rate of the stage.
    pub adamw_learning_rate_ratio: f64,
}

impl Muon {
    /// Returns the factor of the learning rate for a matrix of shape \[rows, columns\].
    pub fn update_scale(&self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self.scale {
            MuonScale::Adamw => 0.2 * rows.max(columns).sqrt(),
            MuonScale::Original => (rows / columns).max(1.0).sqrt(),
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            iterations: 5,
            precision: MuonPrecision::Bf16,
            scale: MuonScale::Adamw,
            adamw_learning_rate_ratio: 1.0,
        }
    }
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
    /// Settings of Muon. No effect with other optimizers.
    #[serde(skip_serializing_if = "Muon::is_default")]
    #[schemars(!skip_serializing_if)]
    pub muon: Muon,
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
            muon: Muon::default(),
        }
    }
}
