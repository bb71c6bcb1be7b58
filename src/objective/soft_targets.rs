//! Soft targets of a teacher (DistilBERT, arXiv 1910.01108): the divergence between the distributions of teacher and model over
//! the vocabulary, at all tokens.
//!
//! The logits of all tokens would not fit into memory. So the loss is computed for a chunk of tokens at a time, together with
//! its gradient, of which only the sum over the vocabulary is kept.

use lambert_plan::objectives;
use tch::{Kind, Tensor};

use super::{Loss, LossValue, teacher};
use crate::data::{GlobalBatch, MicroBatch};
use crate::model::input::Input;
use crate::model::{Heads, VocabularyDecoder};

pub struct SoftTargetLoss(pub objectives::LossSpec);

impl Loss for SoftTargetLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.tokens()
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.tokens()
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let of_teacher = teacher::output(input);
        let (decoder, of_teacher_decoder) = (heads.decoder(), of_teacher.heads.decoder());
        let teacher_hidden = of_teacher.hidden.flatten(0, 1);
        let teacher_logits = |first, count| {
            let states = of_teacher.heads.decoder_input(&teacher_hidden.narrow(0, first, count));
            of_teacher_decoder.logits(&states)
        };
        let states = heads.decoder_input(&hidden.flatten(0, 1));
        let chunk = (of_teacher.chunk / decoder.vocabulary()).max(1);
        let weights = input.token_weights();
        let loss = chunked(&states, &decoder, chunk, &teacher_logits, of_teacher.temperature, weights.as_ref());
        LossValue { loss, correct: None, detection: None, logits: None }
    }
}

/// Computes the loss of the inputs of the decoder, `states` \[n, width\], for at most `chunk` tokens at a time.
/// `teacher_logits` returns the logits of the teacher for a number of tokens from the first one on.
fn chunked(
    states: &Tensor,
    decoder: &VocabularyDecoder,
    chunk: i64,
    teacher_logits: &dyn Fn(i64, i64) -> Tensor,
    temperature: f64,
    weights: Option<&Tensor>,
) -> Tensor {
    let mut sum = WeightedSum::new(states, decoder);
    tch::no_grad(|| {
        let (detached, all) = (states.detach(), states.size()[0]);
        for first in (0..all).step_by(chunk as usize) {
            let count = chunk.min(all - first);
            let rows = detached.narrow(0, first, count);
            let logits = [decoder.logits(&rows), teacher_logits(first, count)];
            let weights = weights.map(|weights| weights.narrow(0, first, count));
            sum.add(&rows, divergence(logits, temperature, weights.as_ref()));
        }
    });
    sum.finish(states)
}

/// Computes the sum over tokens of `T² KL(teacher || student)` at temperature T, and its gradient for the logits of the student,
/// \[n, vocabulary\]. The logits are those of student and teacher. `weights` \[n\] scale each token.
fn divergence([student, teacher]: [Tensor; 2], temperature: f64, weights: Option<&Tensor>) -> (Tensor, Tensor) {
    let softened = |logits: Tensor| (logits.to_kind(Kind::Float) / temperature).log_softmax(-1, Kind::Float);
    let student = softened(student);
    let teacher = softened(teacher);
    let probabilities = teacher.exp();
    let each = (&probabilities * (teacher - &student)).sum_dim_intlist(-1, false, Kind::Float);
    let (each, gradient) = (each * (temperature * temperature), (student.exp() - probabilities) * temperature);
    match weights {
        Some(weights) => ((each * weights).sum(Kind::Float), gradient * weights.unsqueeze(1)),
        None => (each.sum(Kind::Float), gradient),
    }
}

/// Sum of the loss over chunks, with the gradients of the inputs and the parameters of the decoder, f32.
struct WeightedSum<'a> {
    decoder: &'a VocabularyDecoder,
    loss: Option<Tensor>,
    gradients: Option<Gradients>,
}

struct Gradients {
    /// Gradient of the input of the decoder, \[n, width\] for each chunk.
    states: Vec<Tensor>,
    weight: Tensor,
    bias: Tensor,
}

impl<'a> WeightedSum<'a> {
    /// Starts from 0. `states` are the inputs of the decoder. Without a graph, no gradients are computed.
    fn new(states: &Tensor, decoder: &'a VocabularyDecoder) -> Self {
        let zeros = |tensor: &Tensor| tensor.detach().zeros_like();
        let gradients = states.requires_grad().then(|| Gradients {
            states: Vec::new(),
            weight: zeros(&decoder.weight),
            bias: zeros(&decoder.bias),
        });
        Self { decoder, loss: None, gradients }
    }

    /// Adds the loss of a chunk. `rows` are the inputs of the decoder.
    fn add(&mut self, rows: &Tensor, (loss, gradient): (Tensor, Tensor)) {
        self.loss = Some(match self.loss.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        let Some(gradients) = &mut self.gradients else { return };
        gradients.bias += gradient.sum_dim_intlist(0, false, Kind::Float);
        let gradient = gradient.to_kind(rows.kind());
        gradients.states.push(gradient.matmul(&self.decoder.compute_weight).to_kind(Kind::Float));
        match rows.kind() {
            Kind::Float => {
                let _ = gradients.weight.addmm_(&gradient.tr(), rows);
            }
            _ => gradients.weight += gradient.tr().matmul(rows).to_kind(Kind::Float),
        }
    }

    /// Returns the sum, a scalar. Its backward pass multiplies the gradients by the gradient of the sum.
    fn finish(self, states: &Tensor) -> Tensor {
        let sum = self.loss.unwrap_or_else(|| states.detach().to_kind(Kind::Float).sum(Kind::Float) * 0.0);
        let Some(Gradients { states: of_states, weight, bias }) = self.gradients else { return sum };
        let decoder = self.decoder;
        let parts =
            [(states, Tensor::cat(&of_states, 0)), (&decoder.weight, weight), (&decoder.bias, bias)].into_iter();
        parts.filter(|(input, _)| input.requires_grad()).fold(sum, |sum, (input, gradient)| {
            // `gradient` is the gradient of this sum, whose value is subtracted again.
            let product = (input.to_kind(Kind::Float) * gradient).sum(Kind::Float);
            sum + (&product - product.detach())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::teacher::tests::{Golden, close, parameter, tensor};
    use super::*;

    /// The backward pass starts from a scaled loss, as in training.
    #[test]
    fn loss_and_gradients_match_torch_in_chunks_of_any_size() {
        let golden = Golden::read();
        let [tokens, width, _, vocabulary] = golden.sizes;
        let teacher = tensor(&golden.teacher_logits, &[tokens, vocabulary]);
        let weights = tensor(&golden.weights, &[tokens]);
        for case in &golden.soft_targets {
            for chunk in [1, 3, 5, 10, 64] {
                let states = parameter(&golden.states, &[tokens, width]);
                let weight = parameter(&golden.weight, &[vocabulary, width]);
                let bias = parameter(&golden.bias, &[vocabulary]);
                let decoder = VocabularyDecoder::new(weight.shallow_clone(), bias.shallow_clone(), None);
                let logits = |first, count| teacher.narrow(0, first, count);
                let score = || chunked(&states, &decoder, chunk, &logits, case.temperature, Some(&weights));
                let loss = score();
                close(&loss, &[case.loss], 1e-5);
                (loss * 0.25).backward();
                for (input, expected) in [&states, &weight, &bias].into_iter().zip(&case.gradients) {
                    close(&(input.grad() * 4.0), expected, 2e-5);
                }
                let evaluated = tch::no_grad(score);
                assert!(!evaluated.requires_grad());
                close(&evaluated, &[case.loss], 1e-5);
            }
        }
    }

    #[test]
    fn equal_distributions_have_no_loss_and_no_gradient() {
        let logits = || Tensor::from_slice(&[0.5_f32, -2.0, 30.0, 1.0]).view([1, 4]);
        let (loss, gradient) = divergence([logits(), logits() + 3.0], 2.0, None);
        assert!(loss.double_value(&[]).abs() < 1e-6 && gradient.abs().max().double_value(&[]) < 1e-6);
    }
}
