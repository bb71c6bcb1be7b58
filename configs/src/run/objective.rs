//! What is learnt.

use serde::{Deserialize, Serialize};

use crate::prep::Pair;

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
