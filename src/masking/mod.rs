//! Dynamic masking: which tokens of a sample are hidden, and by what. A pure function of a key made of the seed, the
//! epoch and the sample, so that masks do not depend on the number of workers and nothing has to be stored.

mod choose;
#[cfg(test)]
mod tests;

use lambert_config::run::{MaskToken, Masking, Objective};
use lambert_dataset::random::Key;

/// What masking needs to know of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pieces {
    /// \[MASK\].
    pub mask: u32,
    /// \[UNK\].
    pub unk: u32,
    /// \[CLS\], \[SEP\] and \[PAD\]: never masked.
    pub never: [u32; 3],
    /// For every piece of the vocabulary whether it goes on the word before it (`##ing`).
    pub continuations: Vec<bool>,
}

impl Pieces {
    /// Whether a piece goes on the word before it.
    fn is_continuation(&self, id: u32) -> bool {
        self.continuations.get(id as usize).copied().unwrap_or(false)
    }
}

/// One hidden token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hidden {
    /// Its place in the sample.
    pub position: u16,
    /// The token that stood there.
    pub label: u32,
}

/// The key of a sample's masks. Static masks come back after `static_masks` epochs.
pub fn key(seed: u64, objective: &Objective, epoch: u64, sample: u64) -> Key {
    let epoch = match objective.masking {
        Masking::Dynamic => epoch,
        Masking::Static => epoch % objective.static_masks.max(1) as u64,
    };
    Key::new(seed).with_bytes(b"mask").with(epoch).with(sample)
}

/// Hides tokens of `ids` in place and returns them in the order of their positions. Of the hidden tokens 80 % become
/// \[MASK\] (or \[UNK\]), 10 % a random piece, 10 % stay as they are; that is drawn for each token, or for each span.
pub fn mask(ids: &mut [u32], objective: &Objective, pieces: &Pieces, key: Key) -> Vec<Hidden> {
    let mut rng = key.rng();
    let most = objective.predictions(ids.len());
    let chosen = choose::choose(ids, objective.mask_unit, most, pieces, &mut rng);
    let hider = match objective.mask_token {
        MaskToken::Mask => pieces.mask,
        MaskToken::Unk => pieces.unk,
    };
    let (mut group, mut fate) = (None, 0);
    let hide = |(position, together): (u16, usize)| {
        if group != Some(together) {
            (group, fate) = (Some(together), rng.below(10));
        }
        let token = &mut ids[usize::from(position)];
        let hidden = Hidden { position, label: *token };
        match fate {
            0..8 => *token = hider,
            8 => *token = rng.below(pieces.continuations.len() as u64) as u32,
            _ => {}
        }
        hidden
    };
    chosen.into_iter().map(hide).collect()
}
