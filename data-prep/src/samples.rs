//! Documents of a bucket to samples.

mod bucket;
mod pairs;
mod single;

use lambert_config::prep::{Pair, Samples};

use crate::prep::spill::DocumentId;
use crate::tokenizer::Special;

pub use bucket::Bucket;

/// What makes samples out of documents.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// As configured.
    pub samples: &'a Samples,
    /// For `[CLS]` and `[SEP]`.
    pub special: Special,
    /// How often a document is used in each pass.
    pub weight: &'a dyn Fn(DocumentId) -> usize,
}

/// Takes a finished sample: ids, start of the second segment (0 = none), pair label.
pub type Emit<'a> = dyn FnMut(&[u32], u16, u8) + 'a;

/// All samples of the documents of `bucket`, in their order, pass after pass.
pub fn make(bucket: &Bucket, rules: &Rules<'_>, emit: &mut Emit<'_>) {
    for pass in 0..rules.samples.passes {
        for index in 0..bucket.len() {
            let id = bucket.document(index).id;
            for repeat in 0..(rules.weight)(id) {
                let key = id.key(rules.samples.seed, "samples").with(pass as u64).with(repeat as u64);
                match rules.samples.pair {
                    Pair::Nsp | Pair::Sop => pairs::make(bucket, index, rules, &mut key.rng(), emit),
                    Pair::None => single::make(bucket, index, rules, &mut key.rng(), emit),
                }
            }
        }
    }
}

/// Tokens that a sample aims at: `most`, or with the configured probability a random shorter length.
fn target(rules: &Rules<'_>, most: usize, rng: &mut crate::random::Rng) -> usize {
    if rng.chance(rules.samples.short_sequence_probability) { rng.between(2, most as u64) as usize } else { most }
}
