//! Pair objectives: next-sentence prediction and sentence order. Both ask for one of two labels a sample; what the
//! label means is the dataset's matter (1 = the second segment was replaced, or swapped with the first).

use lambert_config::objectives;
use tch::Tensor;

use super::{Objective, Scored};
use crate::data::{GlobalBatch, MicroBatch};
use crate::input::Input;
use crate::model::Heads;

pub struct Pair;

impl Objective for Pair {
    fn description(&self) -> objectives::Objective {
        objectives::PAIR
    }

    fn answers(&self, batch: &MicroBatch) -> usize {
        batch.pair_labels.len()
    }

    fn answers_of_all(&self, batch: &GlobalBatch) -> u64 {
        batch.lengths.len() as u64
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> Scored {
        super::score(&heads.pair(hidden), super::asked(input.pair_labels.as_ref()), input.factors.as_ref())
    }
}
