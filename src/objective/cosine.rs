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
        batch.tokens()
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.tokens()
    }

    fn score(&self, _: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let weights = input.token_weights();
        let loss = distance([hidden, &teacher::output(input).hidden], weights.as_ref());
        LossValue { loss, correct: None, detection: None, logits: None }
    }
}

/// Computes the sum of 1 minus the cosine over tokens. The states are those of model and teacher, \[..., hidden\]. `weights` scale each
/// token.
fn distance(states: [&Tensor; 2], weights: Option<&Tensor>) -> Tensor {
    let [ours, theirs] = states.map(|states| states.to_kind(Kind::Float));
    let product = |a: &Tensor, b: &Tensor| (a * b).sum_dim_intlist(-1, false, Kind::Float).flatten(0, -1);
    let norms = ((product(&ours, &ours) + EPSILON) * (product(&theirs, &theirs) + EPSILON)).sqrt();
    let each: Tensor = 1.0 - product(&ours, &theirs) / norms;
    match weights {
        Some(weights) => (each * weights).sum(Kind::Float),
        None => each.sum(Kind::Float),
    }
}

#[cfg(test)]
mod tests {
    use super::super::teacher::tests::{Golden, close, parameter, tensor};
    use super::*;

    #[test]
    fn loss_and_gradient_match_torch() {
        let golden = Golden::read();
        let [tokens, _, hidden, _] = golden.sizes;
        let ours = parameter(&golden.hidden, &[2, tokens / 2, hidden]);
        let theirs = tensor(&golden.teacher_hidden, &[2, tokens / 2, hidden]);
        let loss = distance([&ours, &theirs], Some(&tensor(&golden.weights, &[tokens])));
        close(&loss, &[golden.cosine], 1e-5);
        (loss * 0.5).backward();
        close(&(ours.grad() * 2.0), &golden.cosine_gradient, 1e-5);
    }
}
