//! Cosine loss (DistilBERT, arXiv 1910.01108): the directions of the last hidden states of model and teacher, at all tokens.

use lambert_plan::objectives;
use tch::{Kind, Tensor};

use super::{Loss, LossValue, teacher};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::Heads;
use crate::model::input::Input;

/// Added to the squared norms, as in `cosine_embedding_loss` of PyTorch.
const EPSILON: f64 = 1e-12;

pub struct CosineLoss(pub objectives::LossSpec);

impl Loss for CosineLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        teacher::tokens(batch)
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.tokens()
    }

    fn score(&self, _: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let [ours, theirs] = [hidden, &teacher::output(input).hidden].map(|states| states.to_kind(Kind::Float));
        let product = |a: &Tensor, b: &Tensor| (a * b).sum_dim_intlist(-1, false, Kind::Float).flatten(0, -1);
        let norms = ((product(&ours, &ours) + EPSILON) * (product(&theirs, &theirs) + EPSILON)).sqrt();
        let each: Tensor = 1.0 - product(&ours, &theirs) / norms;
        let loss = match input.token_weights() {
            Some(weights) => (each * weights).sum(Kind::Float),
            None => each.sum(Kind::Float),
        };
        LossValue { loss, correct: None, logits: None }
    }
}
