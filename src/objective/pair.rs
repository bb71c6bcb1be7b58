//! Next-sentence prediction and sentence order: both predict one of two labels a sample. The dataset decides what the label means
//! (1: the second segment was replaced, or swapped with the first).

use lambert_plan::objectives;
use tch::Tensor;

use super::{Loss, Scored};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;
use crate::model::input::Input;

pub struct Pair;

impl Loss for Pair {
    fn description(&self) -> objectives::LossSpec {
        objectives::PAIR
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.pair_labels.len()
    }

    fn targets_of_all(&self, batch: &GlobalBatch) -> u64 {
        batch.lengths.len() as u64
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> Scored {
        super::score(&heads.pair(hidden), super::targets(input.pair_labels.as_ref()), input.loss_scales.as_ref())
    }
}
