//! Generation of training samples from the documents of a bucket.

mod bucket;
mod pairs;
mod single;

use lambert_config::prep::{Pair, SampleSettings};

use crate::record::DocumentId;
use lambert_dataset::tokenizer::Special;

pub use bucket::DocumentBucket;

/// Parameters of sample generation.
#[derive(Clone, Copy)]
pub struct SamplingRules<'a> {
    /// Configured rules.
    pub samples: &'a SampleSettings,
    /// IDs of the special tokens.
    pub special: Special,
    /// Number of times a document is used in each pass.
    pub weight: &'a dyn Fn(DocumentId) -> usize,
}

/// Receives a finished sample: token IDs, start of the second segment (0: none), pair label.
pub type EmitSample<'a> = dyn FnMut(&[u32], u16, u8) + 'a;

/// Generates all samples of the documents of `bucket`, one pass after another.
pub fn make_samples(bucket: &DocumentBucket, rules: &SamplingRules<'_>, emit: &mut EmitSample<'_>) {
    for pass in 0..rules.samples.passes {
        let key = |index: usize, repeat: usize, kind: &str| {
            bucket.document(index).key(rules.samples.seed, kind).with(pass as u64).with(repeat as u64)
        };
        let uses = (0..bucket.len())
            .flat_map(|index| (0..(rules.weight)(bucket.document(index).id)).map(move |repeat| (index, repeat)));
        match rules.samples.pair {
            Pair::Nsp | Pair::Sop => uses.for_each(|(index, repeat)| {
                pairs::make_pairs(bucket, index, rules, &mut key(index, repeat, "samples").rng(), emit);
            }),
            Pair::None => {
                // Each pass packs the documents in a different order, so that documents have different neighbors.
                let mut order: Vec<_> =
                    uses.map(|(index, repeat)| (key(index, repeat, "order").value(), index)).collect();
                order.sort_unstable();
                let order: Vec<usize> = order.into_iter().map(|(_, index)| index).collect();
                let Some(&first) = order.first() else { continue };
                single::pack(bucket, &order, rules, &mut key(first, 0, "samples").rng(), emit);
            }
        }
    }
}

/// Returns the target length of a sample. It is `max_tokens` or, with the configured probability, a shorter random
/// length.
fn target_length(rules: &SamplingRules<'_>, max_tokens: usize, rng: &mut lambert_dataset::random::Rng) -> usize {
    if rng.chance(rules.samples.short_sequence_probability) {
        rng.between(2, max_tokens as u64) as usize
    } else {
        max_tokens
    }
}
