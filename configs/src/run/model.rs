//! Encoder.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Family;

/// Position of layer normalizations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// After each residual sum, as in the original BERT.
    #[default]
    Post,
    /// Before the attention, before the feed-forward layer, and after the last layer (Megatron-BERT, arXiv 1909.08053).
    Pre,
}

/// Activation function of the feed-forward layers and the MLM head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// GELU, `x Phi(x)`.
    #[default]
    Gelu,
    /// Tanh approximation of GELU.
    GeluTanh,
    /// SiLU, `x / (1 + exp(-x))`. A gated layer with SiLU is a SwiGLU.
    Silu,
}

/// Kind of normalization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NormKind {
    /// Layer normalization.
    #[default]
    Layer,
    /// Division by the root mean square (arXiv 1910.07467). It has no bias.
    Rms,
}

/// Format of activations and matrix products. Weights, gradients, moments, losses and sums over ranks are always fp32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// IEEE single precision.
    #[default]
    Fp32,
    /// On a GPU, single precision with TensorFloat-32 (19 bits) matrix products. On a CPU, the same as `fp32`.
    Tf32,
    /// bfloat16.
    Bf16,
}

/// Random numbers of attention dropout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// `fused` on a GPU, `keyed` on a CPU.
    #[default]
    Auto,
    /// The random draws are a function of seed, step, sample, layer, head and position. They are the same on every
    /// device, for every number of ranks and for every partition into micro-batches. The attention weights are kept for
    /// the backward pass.
    Keyed,
    /// libtorch's fused attention uses its own random generator, seeded for each step, micro-batch and layer.
    /// Results depend on the partition into micro-batches and on the device. Fused attention is faster on a GPU and
    /// does not keep the attention weights.
    Fused,
}

impl Attention {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Key of `[model]` that changes what a model computes, but not the shapes of its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionKey {
    /// Activation function.
    Activation,
    /// Window of local attention.
    AttentionWindow,
    /// Interval of the layers with global attention.
    GlobalAttentionEvery,
    /// Epsilon of the normalizations.
    LayerNormEps,
    /// Base of the rotary positions of local attention.
    LocalRotaryBase,
    /// Kind of normalization.
    NormKind,
    /// Base of the rotary positions of global attention.
    RotaryBase,
}

impl FunctionKey {
    /// All keys.
    pub const ALL: [Self; 7] = [
        Self::Activation,
        Self::AttentionWindow,
        Self::GlobalAttentionEvery,
        Self::LayerNormEps,
        Self::LocalRotaryBase,
        Self::NormKind,
        Self::RotaryBase,
    ];

    /// Returns the name of the key.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activation => "activation",
            Self::AttentionWindow => "attention_window",
            Self::GlobalAttentionEvery => "global_attention_every",
            Self::LayerNormEps => "layer_norm_eps",
            Self::LocalRotaryBase => "local_rotary_base",
            Self::NormKind => "norm_kind",
            Self::RotaryBase => "rotary_base",
        }
    }
}

/// Encoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Encoder family. It determines the defaults of the other keys, which are shown here for `bert`.
    pub family: Family,
    /// Number of encoder layers. A stage may have fewer layers (`stage.layers`).
    pub layers: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Number of attention heads. It must divide the hidden size.
    pub heads: usize,
    /// Size of the feed-forward layer.
    pub intermediate: usize,
    /// Number of position embeddings, which is the maximum sequence length in tokens.
    pub positions: usize,
    /// Number of segment embeddings. 0: none.
    pub segments: usize,
    /// Size of the embeddings. Absent: the hidden size. A smaller size needs a projection to the hidden size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<usize>,
    /// Number of groups of layers. The layers of a group share their weights. 0: each layer has its own weights.
    pub groups: usize,
    /// Buckets of relative positions on each side of a token. 0: no relative positions.
    pub position_buckets: usize,
    /// Predicts masked tokens with a decoder that knows the absolute positions.
    ///
    /// The decoder applies the last layer twice.
    pub enhanced_decoder: bool,
    /// Format of activations and matrix products.
    ///
    /// Weights, gradients, moments, losses and sums over ranks are always fp32.
    pub precision: Precision,
    /// Position of normalizations.
    pub norm: Norm,
    /// Kind of normalization.
    pub norm_kind: NormKind,
    /// Normalizations have a bias.
    pub norm_bias: bool,
    /// Linear layers have a bias. The MLM decoder always has one.
    pub linear_bias: bool,
    /// Activation function of the feed-forward layers and the MLM head.
    pub activation: Activation,
    /// Gated feed-forward layers, `act(W x) * (V x)` (arXiv 2002.05202).
    pub gated: bool,
    /// Base of the rotary positions of layers with global attention. Absent: learned positions.
    ///
    /// Rotary positions: arXiv 2104.09864.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotary_base: Option<f64>,
    /// Base of the rotary positions of layers with local attention. Absent: `rotary_base`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rotary_base: Option<f64>,
    /// Window of local attention, tokens. 0: global attention only.
    ///
    /// A token attends to tokens at a distance of at most half the window.
    pub attention_window: usize,
    /// With an attention window, the first of each group of this many layers has global attention.
    pub global_attention_every: usize,
    /// Ties the MLM decoder to the token embeddings.
    pub tied_decoder: bool,
    /// Pads the vocabulary size to a multiple of this number, 1 to 1024. 8 suits the matrix units of GPUs.
    ///
    /// Padding rows are zero and never predicted.
    pub pad_vocabulary_to: usize,
    /// Dropout probability of embeddings, attention weights and sublayer outputs.
    pub dropout: f64,
    /// Dropout probability of attention weights. Absent: `dropout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f64>,
    /// Dropout probability of the attention output. Absent: `dropout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_output_dropout: Option<f64>,
    /// Random numbers of attention dropout.
    #[serde(skip_serializing_if = "Attention::is_auto")]
    #[schemars(!skip_serializing_if)]
    pub attention: Attention,
    /// Standard deviation of the initial weights (truncated normal).
    pub initializer_range: f64,
    /// Divides the initial deviation of residual projections by sqrt(2 `layers`), as Megatron does.
    pub scaled_initialization: bool,
    /// Epsilon of the normalizations.
    pub layer_norm_eps: f64,
}

impl Model {
    /// Returns the keys with their values.
    ///
    /// # Errors
    /// An integer exceeds `i64`.
    pub fn to_table(&self) -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(self)
    }

    /// Returns the padded size of a vocabulary of `vocabulary` tokens.
    pub fn padded_vocabulary(&self, vocabulary: usize) -> usize {
        vocabulary.next_multiple_of(self.pad_vocabulary_to.max(1))
    }

    /// Returns the number of outputs of the feed-forward up projection.
    pub fn feed_forward_width(&self) -> usize {
        if self.gated { 2 * self.intermediate } else { self.intermediate }
    }

    /// True if both models compute the same from the same weights. Keys that only training reads may differ, and the precision.
    pub fn computes_like(&self, other: &Self) -> bool {
        let computed = |model: &Self| Self { pad_vocabulary_to: 1, ..model.computed() };
        computed(self) == computed(other)
    }

    /// Returns the model with the defaults of the keys that do not change what it computes: those that only training reads, and
    /// the precision.
    pub fn computed(&self) -> Self {
        Self {
            embedding: Some(self.embedding()),
            precision: Precision::default(),
            dropout: 0.0,
            attention_dropout: None,
            attention_output_dropout: None,
            attention: Attention::default(),
            initializer_range: 0.0,
            scaled_initialization: false,
            ..self.clone()
        }
    }

    /// Returns the size of the embeddings.
    pub fn embedding(&self) -> usize {
        self.embedding.unwrap_or(self.hidden)
    }

    /// Returns the distance, in tokens, at which a token in layer `layer` still attends to others. `None`: any distance.
    pub fn attention_reach(&self, layer: usize) -> Option<usize> {
        let is_local = self.attention_window > 0 && !layer.is_multiple_of(self.global_attention_every.max(1));
        is_local.then_some(self.attention_window / 2)
    }

    /// Returns the dropout probability of the attention output.
    pub fn attention_output_dropout(&self) -> f64 {
        self.attention_output_dropout.unwrap_or(self.dropout)
    }

    /// True if attention weights have dropout.
    pub fn drops_attention(&self) -> bool {
        self.attention_dropout.unwrap_or(self.dropout) > 0.0
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            family: Family::Bert,
            layers: 12,
            hidden: 768,
            heads: 12,
            intermediate: 3072,
            positions: 512,
            segments: 2,
            embedding: None,
            groups: 0,
            position_buckets: 0,
            enhanced_decoder: false,
            precision: Precision::Fp32,
            norm: Norm::Post,
            norm_kind: NormKind::Layer,
            norm_bias: true,
            linear_bias: true,
            activation: Activation::Gelu,
            gated: false,
            rotary_base: None,
            local_rotary_base: None,
            attention_window: 0,
            global_attention_every: 1,
            tied_decoder: true,
            pad_vocabulary_to: 1,
            dropout: 0.1,
            attention_dropout: None,
            attention_output_dropout: None,
            attention: Attention::Auto,
            initializer_range: 0.02,
            scaled_initialization: false,
            layer_norm_eps: 1e-12,
        }
    }
}
