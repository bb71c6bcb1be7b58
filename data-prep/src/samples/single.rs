//! Samples of one segment. Whole sentences are packed until the next sentence does not fit (Liu et al. 2019). Depending
//! on the configured packing, a sample has sentences of only one document or of several documents.

use lambert_config::prep::Packing;

use super::bucket::{BucketDocument, DocumentBucket};
use super::{EmitSample, SamplingRules, target_length};
use lambert_dataset::NO_PAIR;
use lambert_dataset::random::Rng;

/// Packs the documents listed in `order`. A sentence that is longer than a sample continues in the next sample, so that
/// no token is lost.
pub fn pack(
    bucket: &DocumentBucket,
    order: &[usize],
    rules: &SamplingRules<'_>,
    rng: &mut Rng,
    emit: &mut EmitSample<'_>,
) {
    let mut sample = SampleBuilder::new(rules, rng);
    for &index in order {
        let document = bucket.document(index);
        if sample.packing == Packing::DocumentSentences {
            sample.finish(rng, emit);
        }
        sample.needs_separator = !sample.is_empty();
        for sentence in 0..document.sentences() {
            sample.push(&document, document.sentence_start(sentence)..document.sentence_start(sentence + 1), rng, emit);
        }
    }
    sample.finish(rng, emit);
}

/// A sample under construction.
struct SampleBuilder<'a> {
    rules: &'a SamplingRules<'a>,
    packing: Packing,
    max_tokens: usize,
    /// Target length, tokens.
    target: usize,
    ids: Vec<u32>,
    /// True if the next sentence and the tokens before it are from different documents.
    needs_separator: bool,
}

impl<'a> SampleBuilder<'a> {
    fn new(rules: &'a SamplingRules<'a>, rng: &mut Rng) -> Self {
        let (packing, max_tokens) = (rules.samples.packing, rules.samples.sequence_length - 2);
        let ids = vec![rules.special.cls];
        Self { rules, packing, max_tokens, target: target_length(rules, max_tokens, rng), ids, needs_separator: false }
    }

    fn is_empty(&self) -> bool {
        self.ids.len() == 1
    }

    /// Number of tokens that still fit into the sample. If `needs_separator`, a separator before them also fits.
    fn room(&self) -> usize {
        (self.target + 1).saturating_sub(self.ids.len() + usize::from(self.needs_separator))
    }

    fn push(
        &mut self,
        document: &BucketDocument<'_>,
        mut tokens: std::ops::Range<usize>,
        rng: &mut Rng,
        emit: &mut EmitSample<'_>,
    ) {
        if tokens.len() > self.room() {
            self.finish(rng, emit);
        }
        while tokens.len() > self.room() {
            let end = tokens.start + self.room();
            document.copy(tokens.start..end, &mut self.ids);
            tokens.start = end;
            self.finish(rng, emit);
        }
        if self.needs_separator {
            self.ids.push(self.rules.special.sep);
            self.needs_separator = false;
        }
        document.copy(tokens, &mut self.ids);
    }

    /// Emits the sample unless it is empty, and starts the next sample.
    fn finish(&mut self, rng: &mut Rng, emit: &mut EmitSample<'_>) {
        self.needs_separator = false;
        if self.is_empty() {
            return;
        }
        self.ids.push(self.rules.special.sep);
        emit(&self.ids, 0, NO_PAIR);
        self.ids.truncate(1);
        self.target = target_length(self.rules, self.max_tokens, rng);
    }
}
