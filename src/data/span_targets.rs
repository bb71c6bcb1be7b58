//! Tokens of masked spans and the tokens beside the spans, for the span boundary objective (SpanBERT, arXiv 1907.10529).

use std::ops::Range;

use lambert_plan::architecture::SPAN_POSITIONS;

/// Targets of the span boundary objective in a micro-batch. All arrays have one entry per target.
///
/// A span is a run of adjacent masked tokens of a sample, so spans that touch are one span, as in SpanBERT. The boundaries are
/// the tokens before and after the run. They are never masked, but may be special tokens. A span at an end of its sample lacks a
/// boundary, and has no targets. Of a long span, only the first [`SPAN_POSITIONS`] tokens are targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanTargets {
    /// Indices of the tokens before the spans, in the ids of the micro-batch.
    pub left: Vec<i32>,
    /// Indices of the tokens after the spans, in the ids of the micro-batch.
    pub right: Vec<i32>,
    /// Positions of the targets in their spans, from 0.
    pub offsets: Vec<i32>,
    /// Original ids of the targets.
    pub labels: Vec<i32>,
}

impl SpanTargets {
    /// Finds the targets among masked tokens. `positions` are their sorted indices in the ids of the micro-batch, and `labels`
    /// their original ids. `samples` are the ranges of the samples in the ids, in order.
    pub fn new(positions: &[i32], labels: &[i32], samples: impl Iterator<Item = Range<i32>>) -> Self {
        let mut targets = Self::default();
        let masked: Vec<(i32, i32)> = positions.iter().copied().zip(labels.iter().copied()).collect();
        let mut rest = masked.as_slice();
        for sample in samples {
            let (own, others) = rest.split_at(rest.partition_point(|(position, _)| *position < sample.end));
            rest = others;
            own.chunk_by(|(a, _), (b, _)| a + 1 == *b).for_each(|span| targets.add(span, &sample));
        }
        targets
    }

    /// Adds the targets of a span of `sample`. `span` has the index and the original id of each of its tokens.
    fn add(&mut self, span: &[(i32, i32)], sample: &Range<i32>) {
        let (Some((first, _)), Some((last, _))) = (span.first(), span.last()) else { return };
        if *first == sample.start || last + 1 == sample.end {
            return;
        }
        for (offset, (_, label)) in (0..SPAN_POSITIONS as i32).zip(span) {
            self.left.push(first - 1);
            self.right.push(last + 1);
            self.offsets.push(offset);
            self.labels.push(*label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_masked_tokens_are_spans_within_their_samples() {
        // Samples of 8, 6 and 30 tokens. The second sample has no boundaries: its first and last tokens are masked.
        let positions: Vec<i32> = [1, 2, 3, 5, 8, 13].into_iter().chain(15..40).collect();
        let labels: Vec<i32> = positions.iter().map(|position| 100 + position).collect();
        let targets = SpanTargets::new(&positions, &labels, [0..8, 8..14, 14..44].into_iter());
        let long = |value: i32| std::iter::repeat_n(value, SPAN_POSITIONS);
        assert_eq!(targets.left, [0, 0, 0, 4].into_iter().chain(long(14)).collect::<Vec<_>>());
        assert_eq!(targets.right, [4, 4, 4, 6].into_iter().chain(long(40)).collect::<Vec<_>>());
        assert_eq!(targets.offsets, [0, 1, 2, 0].into_iter().chain(0..20).collect::<Vec<_>>());
        assert_eq!(targets.labels, [101, 102, 103, 105].into_iter().chain(115..135).collect::<Vec<_>>());
        assert_eq!(SpanTargets::new(&[], &[], std::iter::once(0..8)), SpanTargets::default());
    }
}
