//! The encoder.

use serde::{Deserialize, Serialize};

/// The family of encoders that a model belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT (arXiv 1810.04805), post- or pre-normalised.
    #[default]
    Bert,
}

impl Family {
    fn is_bert(&self) -> bool {
        *self == Self::Bert
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
    /// 32 bits, of which a GPU's matrix products read 19 (TensorFloat-32); the same as `fp32` elsewhere.
    Tf32,
    /// 16 bits, 8 of them for the exponent (bfloat16).
    Bf16,
}

/// What dropout of the attention weights is drawn from, where there is any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Fused on a GPU, keyed in main memory.
    #[default]
    Auto,
    /// The seed, the step, the sample, the layer, the head and the position: the same on every device, in every world, however
    /// a global batch is cut. The weights are kept for the backward pass.
    Keyed,
    /// libtorch's fused attention, by its own generator, seeded from the seed, the step, the micro-batch and the layer: what is
    /// dropped depends on how a global batch is cut and on the device. Faster on a GPU, and no weights are kept.
    Fused,
}

impl Attention {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// The encoder. Defaults are BERT-base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// The family that it belongs to.
    #[serde(skip_serializing_if = "Family::is_bert")]
    pub family: Family,
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
    /// What dropout of attention weights is drawn from.
    #[serde(skip_serializing_if = "Attention::is_auto")]
    pub attention: Attention,
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

    /// Whether attention weights are dropped.
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
            precision: Precision::Fp32,
            norm: Norm::Post,
            activation: Activation::Gelu,
            tied_decoder: true,
            pad_vocabulary_to: 1,
            dropout: 0.1,
            attention_dropout: None,
            attention: Attention::Auto,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
        }
    }
}
