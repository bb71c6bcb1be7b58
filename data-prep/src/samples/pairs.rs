//! Two segments: next-sentence prediction by the rules of Google's `create_pretraining_data.py` (Devlin et al. 2018),
//! and sentence order (Lan et al. 2019), which cuts in the same way.
//!
//! One difference: the short target length is drawn for each sample, where Google draws it for each document, so that
//! the share of short samples does not hang on how long the documents are.

use std::ops::Range;

use lambert_config::prep::Pair;

use super::bucket::Bucket;
use super::{Emit, Rules, target};
use lambert_dataset::random::Rng;

/// How often Google's code looks for another document.
const TRIES: usize = 10;

/// A run of tokens of one document.
type Segment = (usize, Range<usize>);

/// The samples of one document.
pub fn make(bucket: &Bucket, index: usize, rules: &Rules<'_>, rng: &mut Rng, emit: &mut Emit<'_>) {
    let document = bucket.document(index);
    let most = rules.samples.sequence_length - 3;
    let mut aim = target(rules, most, rng);
    let (mut first, mut next) = (0, 0);
    let mut ids = Vec::with_capacity(most + 3);
    while next < document.sentences() {
        next += 1;
        let length = document.start(next) - document.start(first);
        if next < document.sentences() && length < aim {
            continue;
        }
        let count = next - first;
        let split = if count >= 2 { first + rng.between(1, count as u64 - 1) as usize } else { next };
        let a = (index, document.start(first)..document.start(split));
        let pair = match rules.samples.pair {
            Pair::Nsp if count == 1 || rng.chance(0.5) => {
                // The sentences behind the first segment are used by the next sample.
                next = split;
                let wanted = aim.saturating_sub(a.1.len());
                Some((a, other(bucket, index, wanted, rng), 1))
            }
            // One sentence has no order.
            Pair::Sop if count == 1 => None,
            kind => {
                let b = (index, document.start(split)..document.start(next));
                let swapped = kind == Pair::Sop && rng.chance(0.5);
                Some(if swapped { (b, a, 1) } else { (a, b, 0) })
            }
        };
        if let Some((mut a, mut b, label)) = pair {
            truncate(&mut a.1, &mut b.1, most, rng);
            ids.clear();
            let start = assemble(bucket, rules, &a, &b, &mut ids);
            emit(&ids, start, label);
        }
        first = next;
        aim = target(rules, most, rng);
    }
}

/// A run of sentences of another document, of at least `wanted` tokens if there are as many. Where ten tries find no
/// other document it is this one, at a random place, as in Google's code.
fn other(bucket: &Bucket, index: usize, wanted: usize, rng: &mut Rng) -> Segment {
    let mut chosen = index;
    for _ in 0..TRIES {
        chosen = rng.below(bucket.len() as u64) as usize;
        if chosen != index {
            break;
        }
    }
    let document = bucket.document(chosen);
    let first = rng.below(document.sentences() as u64) as usize;
    let mut next = first + 1;
    while next < document.sentences() && document.start(next) - document.start(first) < wanted {
        next += 1;
    }
    (chosen, document.start(first)..document.start(next))
}

/// Takes tokens off the longer segment, at its front or back, until both fit.
fn truncate(a: &mut Range<usize>, b: &mut Range<usize>, most: usize, rng: &mut Rng) {
    while a.len() + b.len() > most {
        let longer = if a.len() > b.len() { &mut *a } else { &mut *b };
        if rng.chance(0.5) {
            longer.start += 1;
        } else {
            longer.end -= 1;
        }
    }
}

/// `[CLS] a [SEP] b [SEP]`; where b starts.
fn assemble(bucket: &Bucket, rules: &Rules<'_>, a: &Segment, b: &Segment, ids: &mut Vec<u32>) -> u16 {
    ids.push(rules.special.cls);
    bucket.document(a.0).copy(a.1.clone(), ids);
    ids.push(rules.special.sep);
    let start = ids.len() as u16;
    bucket.document(b.0).copy(b.1.clone(), ids);
    ids.push(rules.special.sep);
    start
}
