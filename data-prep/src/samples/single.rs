//! One segment: whole sentences packed until the next would not fit (Liu et al. 2019), of one document or of many.

use lambert_config::prep::Packing;

use super::bucket::{Bucket, Document};
use super::{Emit, Rules, target};
use lambert_dataset::NO_PAIR;
use lambert_dataset::random::Rng;

/// The samples of some documents, each used as often as it stands in `order`. A sentence longer than a sample goes on
/// in the next one: nothing is lost.
pub fn make(bucket: &Bucket, order: &[usize], rules: &Rules<'_>, rng: &mut Rng, emit: &mut Emit<'_>) {
    let mut sample = Sample::new(rules, rng);
    for &index in order {
        let document = bucket.document(index);
        if sample.packing == Packing::DocumentSentences {
            sample.end(rng, emit);
        }
        sample.joins = !sample.is_empty();
        for sentence in 0..document.sentences() {
            sample.push(&document, document.start(sentence)..document.start(sentence + 1), rng, emit);
        }
    }
    sample.end(rng, emit);
}

/// A sample that is being filled.
struct Sample<'a> {
    rules: &'a Rules<'a>,
    packing: Packing,
    most: usize,
    /// Tokens it should hold.
    aim: usize,
    ids: Vec<u32>,
    /// Whether the next sentence is of another document than what is there.
    joins: bool,
}

impl<'a> Sample<'a> {
    fn new(rules: &'a Rules<'a>, rng: &mut Rng) -> Self {
        let (packing, most) = (rules.samples.packing, rules.samples.sequence_length - 2);
        let ids = vec![rules.special.cls];
        Self { rules, packing, most, aim: target(rules, most, rng), ids, joins: false }
    }

    fn is_empty(&self) -> bool {
        self.ids.len() == 1
    }

    /// Tokens that can be added, with a separator where one is due.
    fn room(&self) -> usize {
        (self.aim + 1).saturating_sub(self.ids.len() + usize::from(self.joins))
    }

    fn push(
        &mut self,
        document: &Document<'_>,
        mut tokens: std::ops::Range<usize>,
        rng: &mut Rng,
        emit: &mut Emit<'_>,
    ) {
        if tokens.len() > self.room() {
            self.end(rng, emit);
        }
        while tokens.len() > self.room() {
            let end = tokens.start + self.room();
            document.copy(tokens.start..end, &mut self.ids);
            tokens.start = end;
            self.end(rng, emit);
        }
        if self.joins {
            self.ids.push(self.rules.special.sep);
            self.joins = false;
        }
        document.copy(tokens, &mut self.ids);
    }

    /// Gives the sample away, if there is something in it, and begins the next one.
    fn end(&mut self, rng: &mut Rng, emit: &mut Emit<'_>) {
        self.joins = false;
        if self.is_empty() {
            return;
        }
        self.ids.push(self.rules.special.sep);
        emit(&self.ids, 0, NO_PAIR);
        self.ids.truncate(1);
        self.aim = target(self.rules, self.most, rng);
    }
}
