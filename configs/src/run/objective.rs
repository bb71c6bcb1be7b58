//! Training objective.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ReplacedTokens, Teacher};
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
    /// N-grams of one to three words. An n-gram of n words has a probability proportional to 1/n
    /// (ALBERT, DeBERTa). Tokens are
    /// replaced separately.
    Ngram,
}

/// Token that replaces most of the masked tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MaskToken {
    /// \[MASK\].
    #[default]
    Mask,
    /// \[UNK\].
    Unk,
}

/// Objective: masked language modeling, optionally with a sentence-pair objective, the span boundary objective, replaced-token
/// detection or distillation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Objective {
    /// Sentence-pair objective. It must match the dataset. With `none`, a dataset with pairs causes a warning.
    pub pair: Pair,
    /// Choice of masked tokens in successive epochs.
    pub masking: Masking,
    /// Number of different static masks per sample. Each epoch uses the next mask in turn.
    pub static_masks: usize,
    /// Unit of masking. Not for evaluations.
    pub mask_unit: MaskUnit,
    /// Token that replaces the share `mask_share` of the masked tokens. Not for evaluations.
    pub mask_token: MaskToken,
    /// Share of the masked tokens that `mask_token` replaces. 0.85 with `replaced_tokens`.
    pub mask_share: f64,
    /// Share of the masked tokens that a random token of the vocabulary replaces. 0 with `replaced_tokens`.
    ///
    /// The rest stays unchanged.
    pub random_share: f64,
    /// Fraction of tokens to predict, relative to all tokens of a sample including special tokens.
    pub mask_probability: f64,
    /// Masks rare tokens more often. 0: all tokens have the same probability. Not for evaluations.
    ///
    /// A token that occurs n times in the dataset is drawn with a probability proportional to `n^-x`, where x is this value.
    /// 0.5 is usual.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(!skip_serializing_if)]
    pub mask_frequency_exponent: f64,
    /// Text file with a phrase per line. A phrase in a sample is masked like one word. Not for evaluations.
    ///
    /// The first start of a run copies the file to the run. Later starts use the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phrases: Option<String>,
    /// Maximum number of masked tokens per sample. 0: no limit. Use 80 with sequences of 512 tokens.
    pub max_predictions: usize,
    /// Weight of the span boundary objective of SpanBERT in the total loss. 0: off. Needs `mask_unit = "span"`.
    ///
    /// It predicts each token of a masked span from the tokens on both sides of the span and the position in the span (arXiv
    /// 1907.10529). SpanBERT has a weight of 1. The tokens after the 20th of a span are not predicted. ModernBERT and DeBERTa
    /// do not have this objective.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(!skip_serializing_if)]
    pub span_boundary_weight: f64,
    /// Replaced-token detection (ELECTRA).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_tokens: Option<ReplacedTokens>,
    /// Trained model that the model also learns from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<Teacher>,
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

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Settings of `[objective]` that a stage replaces. An absent key has the value of `[objective]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StageObjective {
    /// Fraction of tokens to predict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_probability: Option<f64>,
    /// Maximum number of masked tokens per sample. 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_predictions: Option<usize>,
    /// Share of the masked tokens that `mask_token` replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_share: Option<f64>,
    /// Share of the masked tokens that a random token replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_share: Option<f64>,
    /// Masks rare tokens more often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_frequency_exponent: Option<f64>,
}

impl StageObjective {
    /// True if the stage replaces no setting.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the objective of the stage.
    pub fn of(&self, run: &Objective) -> Objective {
        Objective {
            mask_probability: self.mask_probability.unwrap_or(run.mask_probability),
            max_predictions: self.max_predictions.unwrap_or(run.max_predictions),
            mask_share: self.mask_share.unwrap_or(run.mask_share),
            random_share: self.random_share.unwrap_or(run.random_share),
            mask_frequency_exponent: self.mask_frequency_exponent.unwrap_or(run.mask_frequency_exponent),
            ..run.clone()
        }
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
            mask_share: 0.8,
            random_share: 0.1,
            mask_probability: 0.15,
            mask_frequency_exponent: 0.0,
            phrases: None,
            max_predictions: 20,
            span_boundary_weight: 0.0,
            replaced_tokens: None,
            teacher: None,
        }
    }
}
