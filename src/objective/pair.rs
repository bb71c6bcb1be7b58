//! Next-sentence prediction and sentence order prediction: binary classification of a segment pair. The dataset defines label 1:
//! the second segment was replaced, or swapped with the first.

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
        super::score(&heads.pair(hidden), super::targets(input.pair_labels.as_ref()), input.loss_scales.as_ref())
    }
}
