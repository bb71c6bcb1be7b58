//! Samples of two segments. Next-sentence prediction (NSP) follows the rules of Google's `create_pretraining_data.py`
//! (Devlin et al. 2018). Sentence-order prediction (SOP, Lan et al. 2019) splits documents in the same way.
//!
//! One rule differs from Google's code. The short target length is chosen per sample rather than per document, so that
//! the share of short samples does not depend on document lengths.

use std::ops::Range;

use lambert_config::prep::Pair;

use super::bucket::DocumentBucket;
use super::{EmitSample, SamplingRules, target_length};
use lambert_dataset::random::Rng;

/// Number of attempts to choose another document, as in Google's code.
const MAX_TRIES: usize = 10;

/// A document index and a range of its tokens.
type TokenSpan = (usize, Range<usize>);

/// Generates the samples of one document.
pub fn make_pairs(
    bucket: &DocumentBucket,
    index: usize,
    rules: &SamplingRules<'_>,
    rng: &mut Rng,
    emit: &mut EmitSample<'_>,
) {
    let document = bucket.document(index);
    let max_tokens = rules.samples.sequence_length - 3;
    let mut target = target_length(rules, max_tokens, rng);
    let (mut first, mut next) = (0, 0);
    let mut ids = Vec::with_capacity(max_tokens + 3);
    while next < document.sentences() {
        next += 1;
        let length = document.sentence_start(next) - document.sentence_start(first);
        let (count, remaining) = (next - first, document.sentences() - next);
        // A single sentence does not yield two segments to swap.
        let needs_more = rules.samples.pair == Pair::Sop && (count == 1 || remaining == 1);
        if remaining > 0 && (length < target || needs_more) {
            continue;
        }
        let split = if count >= 2 { first + rng.between(1, count as u64 - 1) as usize } else { next };
        let a = (index, document.sentence_start(first)..document.sentence_start(split));
        let pair = match rules.samples.pair {
            Pair::Nsp if count == 1 || rng.chance(0.5) => {
                // The next sample uses the sentences after the first segment.
                next = split;
                let min_tokens = target.saturating_sub(a.1.len());
                Some((a, random_segment(bucket, index, min_tokens, rng), 1))
            }
            // The whole document is one sentence.
            Pair::Sop if count == 1 => None,
            kind => {
                let b = (index, document.sentence_start(split)..document.sentence_start(next));
                let swapped = kind == Pair::Sop && rng.chance(0.5);
                Some(if swapped { (b, a, 1) } else { (a, b, 0) })
            }
        };
        if let Some((mut a, mut b, label)) = pair {
            truncate(&mut a.1, &mut b.1, max_tokens, rng);
            ids.clear();
            let start = assemble(bucket, rules, &a, &b, &mut ids);
            emit(&ids, start, label);
        }
        first = next;
        target = target_length(rules, max_tokens, rng);
    }
}

/// Chooses consecutive sentences of another document at random. The segment has at least `min_tokens` tokens, unless
/// the other document ends earlier. If ten attempts choose no other document, the segment is from document `index`, as
/// in Google's code.
fn random_segment(bucket: &DocumentBucket, index: usize, min_tokens: usize, rng: &mut Rng) -> TokenSpan {
    let mut chosen = index;
    for _ in 0..MAX_TRIES {
        chosen = rng.below(bucket.len() as u64) as usize;
        if chosen != index {
            break;
        }
    }
    let document = bucket.document(chosen);
    let first = rng.below(document.sentences() as u64) as usize;
    let mut next = first + 1;
    while next < document.sentences() && document.sentence_start(next) - document.sentence_start(first) < min_tokens {
        next += 1;
    }
    (chosen, document.sentence_start(first)..document.sentence_start(next))
}

/// Removes tokens from the front or the back of the longer segment until both segments fit into `max_tokens`.
fn truncate(a: &mut Range<usize>, b: &mut Range<usize>, max_tokens: usize, rng: &mut Rng) {
    while a.len() + b.len() > max_tokens {
        let longer = if a.len() > b.len() { &mut *a } else { &mut *b };
        if rng.chance(0.5) {
            longer.start += 1;
        } else {
            longer.end -= 1;
        }
    }
}

/// Assembles `[CLS] a [SEP] b [SEP]` and returns the start of `b`.
fn assemble(
    bucket: &DocumentBucket,
    rules: &SamplingRules<'_>,
    a: &TokenSpan,
    b: &TokenSpan,
    ids: &mut Vec<u32>,
) -> u16 {
    ids.push(rules.special.cls);
    bucket.document(a.0).copy(a.1.clone(), ids);
    ids.push(rules.special.sep);
    let start = ids.len() as u16;
    bucket.document(b.0).copy(b.1.clone(), ids);
    ids.push(rules.special.sep);
    start
}
