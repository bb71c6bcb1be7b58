//! One segment: sentences of a document packed until the next would not fit.

use super::bucket::Bucket;
use super::{Emit, Rules, target};
use crate::dataset::NO_PAIR;
use crate::random::Rng;

/// The samples of one document. A sentence longer than a sample goes on in the next one: nothing is lost.
pub fn make(bucket: &Bucket, index: usize, rules: &Rules<'_>, rng: &mut Rng, emit: &mut Emit<'_>) {
    let document = bucket.document(index);
    let most = rules.samples.sequence_length - 2;
    let tokens = document.start(document.sentences());
    let (mut start, mut sentence) = (0, 0);
    let mut ids = Vec::with_capacity(most + 2);
    while start < tokens {
        let aim = target(rules, most, rng);
        let mut end = start;
        while sentence < document.sentences() && document.start(sentence + 1) - start <= aim {
            sentence += 1;
            end = document.start(sentence);
        }
        if end == start {
            end = (start + aim).min(document.start(sentence + 1));
        }
        ids.clear();
        ids.push(rules.special.cls);
        document.copy(start..end, &mut ids);
        ids.push(rules.special.sep);
        emit(&ids, 0, NO_PAIR);
        start = end;
    }
}
