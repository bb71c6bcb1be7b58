//! Dynamic masking: which tokens of a sample are hidden, and by what. A pure function of a key made of the seed, the
//! epoch and the sample, so that masks do not depend on the number of workers and nothing has to be stored.

use lambert_config::run::{Masking, Objective};
use lambert_data_prep::random::Key;

/// What masking needs to know of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pieces {
    /// Ids from 0 that a random replacement is drawn from.
    pub count: u32,
    /// \[MASK\].
    pub mask: u32,
    /// \[CLS\], \[SEP\] and \[PAD\]: never masked.
    pub never: [u32; 3],
}

/// One hidden token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hidden {
    /// Its place in the sample.
    pub position: u16,
    /// The token that stood there.
    pub label: u32,
}

/// The key of a sample's masks. With static masks every epoch is like the first.
pub fn key(seed: u64, masking: Masking, epoch: u64, sample: u64) -> Key {
    let epoch = if masking == Masking::Static { 0 } else { epoch };
    Key::new(seed).with_bytes(b"mask").with(epoch).with(sample)
}

/// Tokens to hide in a sample of `length` tokens, specials counted: `min(max_predictions, max(1, round(p x length)))`,
/// as Google's create_pretraining_data. Never more than the sample has tokens that may be hidden.
pub fn predictions(objective: &Objective, length: usize) -> usize {
    let share = (objective.mask_probability * length as f64).round() as usize;
    share.max(1).min(objective.max_predictions)
}

/// Hides tokens of `ids` in place and returns them in the order of their positions. Of the hidden tokens 80 % become
/// \[MASK\], 10 % a random piece, 10 % stay as they are.
pub fn mask(ids: &mut [u32], objective: &Objective, pieces: &Pieces, key: Key) -> Vec<Hidden> {
    let mut rng = key.rng();
    let mut candidates: Vec<u16> =
        (0..ids.len() as u16).filter(|position| !pieces.never.contains(&ids[usize::from(*position)])).collect();
    let count = predictions(objective, ids.len()).min(candidates.len());
    for chosen in 0..count {
        let other = chosen + rng.below((candidates.len() - chosen) as u64) as usize;
        candidates.swap(chosen, other);
    }
    candidates.truncate(count);
    candidates.sort_unstable();
    let hide = |position: u16| {
        let token = &mut ids[usize::from(position)];
        let hidden = Hidden { position, label: *token };
        match rng.below(10) {
            0..8 => *token = pieces.mask,
            8 => *token = rng.below(u64::from(pieces.count)) as u32,
            _ => {}
        }
        hidden
    };
    candidates.into_iter().map(hide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: Pieces = Pieces { count: 1000, mask: 4, never: [0, 2, 3] };

    fn sample(length: u32) -> Vec<u32> {
        let middle = (1..length - 1).map(|index| 100 + index % 800);
        std::iter::once(2).chain(middle).chain([3]).collect()
    }

    #[test]
    fn a_sample_is_masked_the_same_way_each_time_and_another_way_each_epoch() {
        let masked = |epoch| {
            let mut ids = sample(128);
            let hidden = mask(&mut ids, &Objective::default(), &PIECES, key(1, Masking::Dynamic, epoch, 17));
            (ids, hidden)
        };
        assert_eq!(masked(0), masked(0));
        assert_ne!(masked(0), masked(1));
        let fixed = |epoch| key(1, Masking::Static, epoch, 17);
        assert_eq!(fixed(0), fixed(3));
    }

    #[test]
    fn a_million_masked_tokens_keep_to_the_definition() {
        let (mut total, mut as_mask, mut as_random, mut same) = (0_u64, 0_u64, 0_u64, 0_u64);
        let mut places = [0_u64; 128];
        for number in 0..60_000 {
            let original = sample(128);
            let mut ids = original.clone();
            for hidden in mask(&mut ids, &Objective::default(), &PIECES, key(3, Masking::Dynamic, 0, number)) {
                let position = usize::from(hidden.position);
                assert_eq!(hidden.label, original[position]);
                places[position] += 1;
                total += 1;
                match ids[position] {
                    4 => as_mask += 1,
                    id if id == hidden.label => same += 1,
                    _ => as_random += 1,
                }
            }
        }
        assert_eq!(total, 60_000 * 19);
        let share = |count: u64| count as f64 / total as f64;
        // Four standard deviations of a share of 0.8 in 1,140,000 are 0.0015; random pieces hit the old one 1 in 1,000.
        assert!((share(as_mask) - 0.8).abs() < 0.0015, "{}", share(as_mask));
        assert!((share(as_random) - 0.0999).abs() < 0.0012, "{}", share(as_random));
        assert!((share(same) - 0.1001).abs() < 0.0012, "{}", share(same));
        assert_eq!((places[0], places[127]), (0, 0));
        let expected = total as f64 / 126.0;
        assert!(places[1..127].iter().all(|count| (*count as f64 / expected - 1.0).abs() < 0.06));
    }

    #[test]
    fn short_samples_hide_at_least_one_token_and_never_a_special_one() {
        let mut ids = vec![2, 7, 3];
        assert_eq!(mask(&mut ids, &Objective::default(), &PIECES, Key::new(1)), [Hidden { position: 1, label: 7 }]);
        assert_eq!(mask(&mut [2, 3], &Objective::default(), &PIECES, Key::new(1)), []);
        assert_eq!(predictions(&Objective::default(), 512), 20);
        assert_eq!(predictions(&Objective::default(), 128), 19);
    }
}
