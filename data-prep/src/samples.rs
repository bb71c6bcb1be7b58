//! Documents of a bucket to samples.

mod bucket;
mod pairs;
mod single;

use lambert_config::prep::{Pair, Samples};

use crate::random::Key;
use crate::tokenizer::Special;

pub use bucket::Bucket;

/// What makes samples out of documents.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// As configured.
    pub samples: &'a Samples,
    /// For `[CLS]` and `[SEP]`.
    pub special: Special,
}

/// Takes a finished sample: ids, start of the second segment (0 = none), pair label.
pub type Emit<'a> = dyn FnMut(&[u32], u16, u8) + 'a;

/// All samples of the documents of `bucket`, in their order, for one pass.
pub fn make(bucket: &Bucket, rules: &Rules<'_>, pass: usize, emit: &mut Emit<'_>) {
    for index in 0..bucket.len() {
        let id = bucket.document(index).id;
        let key: Key = id.key(rules.samples.seed, "samples").with(pass as u64);
        match rules.samples.pair {
            Pair::Nsp | Pair::Sop => pairs::make(bucket, index, rules, &mut key.rng(), emit),
            Pair::None => single::make(bucket, index, rules, &mut key.rng(), emit),
        }
    }
}

/// Tokens that a sample aims at: `most`, or with the configured probability a random shorter length.
fn target(rules: &Rules<'_>, most: usize, rng: &mut crate::random::Rng) -> usize {
    if rng.chance(rules.samples.short_sequence_probability) { rng.between(2, most as u64) as usize } else { most }
}
