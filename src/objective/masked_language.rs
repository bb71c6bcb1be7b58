//! Masked language modeling (arXiv 1810.04805, section 3.1). The head runs at masked tokens only.

use lambert_plan::objectives;
use tch::Tensor;

use super::{Loss, LossValue};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;
use crate::model::input::Input;

pub struct MaskedLanguageLoss(pub objectives::LossSpec);

impl Loss for MaskedLanguageLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.labels.len()
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.masked_tokens
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let (positions, labels) = (super::targets(input.positions.as_ref()), super::targets(input.labels.as_ref()));
        let factors = input.loss_scales.as_ref().map(|rows| rows.index_select(0, &input.rows_of(positions)));
        super::score_tokens(heads.kernels(), heads.masked_language(hidden, positions), labels, factors.as_ref())
    }
}
