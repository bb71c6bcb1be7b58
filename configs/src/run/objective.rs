//! Training objective.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prep::Pair;

/// Choice of masked tokens in successive epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Masking {
    /// New masks each epoch.
    #[default]
    Dynamic,
    /// The same masks each epoch.
    Static,
}

/// Unit of masking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaskUnit {
    /// Single tokens (word pieces).
    #[default]
    Piece,
    /// Whole words.
    Word,
    /// Spans of one to ten words (SpanBERT, arXiv 1907.10529). All tokens of a span are replaced in the same way.
    Span,
}

/// Token that replaces 80 % of the masked tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaskToken {
    /// \[MASK\].
    #[default]
    Mask,
    /// \[UNK\].
    Unk,
}

/// Masked language modeling, and a sentence-pair objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Objective {
    /// Sentence-pair objective. It must match the dataset.
    pub pair: Pair,
    /// Choice of masked tokens in successive epochs.
    pub masking: Masking,
    /// Number of different static masks per sample. Each epoch uses the next mask in turn.
    pub static_masks: usize,
    /// Unit of masking.
    pub mask_unit: MaskUnit,
    /// Token that replaces 80 % of the masked tokens.
    pub mask_token: MaskToken,
    /// Fraction of tokens to predict, relative to all tokens of a sample including special tokens.
    pub mask_probability: f64,
    /// Maximum number of masked tokens per sample. 0: no limit. Use 80 with sequences of 512 tokens.
    pub max_predictions: usize,
}

impl Objective {
    /// Returns the number of tokens to mask in a sample of `length` tokens including special tokens:
    /// `min(max_predictions, max(1, round(mask_probability x length)))`, as in Google's create_pretraining_data. Fewer
    /// tokens are masked if the sample has fewer maskable tokens, or if no other word is short enough for the remaining
    /// number of tokens.
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
