//! Span boundary objective (SpanBERT, arXiv 1907.10529, section 3.2): each token of a masked span is predicted from the tokens
//! on both sides of the span and from its position in the span.

use lambert_plan::objectives;
use tch::Tensor;

use super::{Loss, LossValue};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;
use crate::model::input::Input;

pub struct SpanBoundaryLoss(pub objectives::LossSpec);

impl Loss for SpanBoundaryLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.span_targets.labels.len()
    }

    /// Number of masked tokens. Long spans have slightly fewer targets.
    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.masked_tokens
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let targets = super::targets(input.span_targets.as_ref());
        let [left, right, offsets, labels] = [0, 1, 2, 3].map(|row| targets.select(0, row));
        let factors = input.loss_scales.as_ref().map(|rows| rows.index_select(0, &input.rows_of(&left)));
        let logits = heads.span_boundary(hidden, &left, &right, &offsets);
        super::score_tokens(heads.kernels(), logits, &labels, factors.as_ref())
    }
}
