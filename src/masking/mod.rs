//! Token masking: selects tokens of a sample and replaces them. The mask is a pure function of seed, epoch and sample.
//! The mask does not depend on the number of ranks, and there is no state to save.

mod choose;
mod draws;
mod phrases;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::Arc;

use lambert_config::run::{MaskToken, Masking, Objective};
use lambert_dataset::random::Key;

pub use phrases::Phrases;
pub use weights::TokenWeights;

/// Vocabulary properties that masking needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskVocab {
    pub mask_id: u32,
    pub unk_id: u32,
    /// Ids of \[CLS\], \[SEP\] and \[PAD\], which are never masked.
    pub special_ids: [u32; 3],
    /// For every vocabulary entry, true if it continues a word (`##ing`).
    pub continuations: Arc<[bool]>,
    /// Ids of the tokens that can replace a masked token.
    pub replacements: Arc<[u32]>,
    /// Weights of the tokens, for masks by frequency.
    pub weights: Option<TokenWeights>,
    /// Phrases that are masked like one word.
    pub phrases: Option<Arc<Phrases>>,
}

impl MaskVocab {
    /// True if the token continues a word.
    fn is_continuation(&self, id: u32) -> bool {
        self.continuations.get(id as usize).copied().unwrap_or(false)
    }
}

/// A masked token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedToken {
    /// Index in the sample.
    pub position: u16,
    /// Original token ID.
    pub label: u32,
}

/// Key of the mask of a sample. Static masking repeats its masks every `static_masks` epochs.
pub fn key(seed: u64, objective: &Objective, epoch: u64, sample: u64) -> Key {
    let epoch = match objective.masking {
        Masking::Dynamic => epoch,
        Masking::Static => epoch % objective.static_masks.max(1) as u64,
    };
    Key::new(seed).with_bytes(b"mask").with(epoch).with(sample)
}

/// Masks tokens of `ids` in place, and returns the masked tokens sorted by position. The share `mask_share` becomes
/// \[MASK\] (or \[UNK\]), the share `random_share` becomes a random token, and the rest stays unchanged. The replacement
/// is drawn for each token, or once for a whole span.
pub fn mask(ids: &mut [u32], objective: &Objective, vocab: &MaskVocab, key: Key) -> Vec<MaskedToken> {
    let mut rng = key.rng();
    let max_tokens = objective.predictions(ids.len());
    let selected = choose::select(ids, objective.mask_unit, max_tokens, vocab, &mut rng);
    let replacement = match objective.mask_token {
        MaskToken::Mask => vocab.mask_id,
        MaskToken::Unk => vocab.unk_id,
    };
    let changed = objective.mask_share + objective.random_share;
    let (mut group, mut draw) = (None, 0.0);
    let mask_token = |(position, token_group): (u16, usize)| {
        if group != Some(token_group) {
            (group, draw) = (Some(token_group), rng.unit_f64());
        }
        let token = &mut ids[usize::from(position)];
        let masked = MaskedToken { position, label: *token };
        if draw < objective.mask_share {
            *token = replacement;
        } else if draw < changed {
            *token = vocab.replacements[rng.below(vocab.replacements.len() as u64) as usize];
        }
        masked
    };
    selected.into_iter().map(mask_token).collect()
}
