//! Documents of a bucket to samples.

mod bucket;
mod pairs;
mod single;

use lambert_config::prep::{Pair, Samples};

use crate::record::DocumentId;
use lambert_dataset::tokenizer::Special;

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

/// All samples of the documents of `bucket`, pass after pass.
pub fn make(bucket: &Bucket, rules: &Rules<'_>, emit: &mut Emit<'_>) {
    for pass in 0..rules.samples.passes {
        let key = |index: usize, repeat: usize, kind: &str| {
            bucket.document(index).key(rules.samples.seed, kind).with(pass as u64).with(repeat as u64)
        };
        let uses = (0..bucket.len())
            .flat_map(|index| (0..(rules.weight)(bucket.document(index).id)).map(move |repeat| (index, repeat)));
        match rules.samples.pair {
            Pair::Nsp | Pair::Sop => uses.for_each(|(index, repeat)| {
                pairs::make(bucket, index, rules, &mut key(index, repeat, "samples").rng(), emit);
            }),
            Pair::None => {
                // Another order, and so other neighbours, in each pass.
                let mut order: Vec<_> =
                    uses.map(|(index, repeat)| (key(index, repeat, "order").value(), index)).collect();
                order.sort_unstable();
                let order: Vec<usize> = order.into_iter().map(|(_, index)| index).collect();
                let Some(&first) = order.first() else { continue };
                single::make(bucket, &order, rules, &mut key(first, 0, "samples").rng(), emit);
            }
        }
    }
}

/// Tokens that a sample aims at: `most`, or with the configured probability a random shorter length.
fn target(rules: &Rules<'_>, most: usize, rng: &mut lambert_dataset::random::Rng) -> usize {
    if rng.chance(rules.samples.short_sequence_probability) { rng.between(2, most as u64) as usize } else { most }
}
