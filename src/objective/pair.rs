//! Next-sentence prediction (NSP) and sentence-order prediction (SOP): binary classification of a pair of segments. In
//! the dataset, label 1 means that the second segment was replaced (NSP) or swapped with the first segment (SOP).

use lambert_plan::objectives;
use tch::Tensor;

use super::{Loss, LossValue};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;
use crate::model::input::Input;

pub struct PairLoss(pub objectives::LossSpec);

impl Loss for PairLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.pair_labels.len()
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.lengths.len() as u64
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        super::score(
            &heads.pair(&input.first_tokens(hidden)),
            super::targets(input.pair_labels.as_ref()),
            input.loss_scales.as_ref(),
        )
    }
}
