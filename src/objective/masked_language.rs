//! Masked language modelling (arXiv 1810.04805, 3.1): name the piece that was hidden. The head runs at the hidden tokens
//! only.

use tch::Tensor;

use super::{Objective, Scored};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;

pub struct MaskedLanguage;

impl Objective for MaskedLanguage {
    fn answers(&self, batch: &MicroBatch) -> usize {
        batch.labels.len()
    }

    fn answers_of_all(&self, batch: &GlobalBatch) -> u64 {
        batch.masked_tokens
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, batch: &MicroBatch, factors: Option<&Tensor>) -> Scored {
        let (positions, labels) = (Tensor::from_slice(&batch.positions), Tensor::from_slice(&batch.labels));
        let row_of = || positions.divide_scalar_mode(batch.width as i64, "floor");
        let factors = factors.map(|rows| rows.index_select(0, &row_of()));
        super::score(&heads.masked_language(hidden, &positions), &labels, factors.as_ref())
    }
}
