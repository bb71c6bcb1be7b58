//! Soft targets of a teacher (DistilBERT, arXiv 1910.01108): the divergence between the distributions of teacher and model over
//! the vocabulary, at all tokens.
//!
//! The logits of all tokens would not fit into memory. So the loss is computed for a chunk of tokens at a time, together with
//! its gradient, of which only the sum over the vocabulary is kept.

use lambert_plan::objectives;
use tch::{Kind, Tensor};

use super::{Loss, LossValue, teacher};
use crate::data::{GlobalBatch, MicroBatch};
use crate::kernels::{self, Kernels, SoftTargetParams};
use crate::model::input::Input;
use crate::model::{Heads, VocabularyDecoder};
use crate::torch;

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
        let chunk = (of_teacher.chunk / decoder.bias.size()[0]).max(1);
        let weights = input.token_weights();
        let (vocabulary, temperature) = (decoder.vocabulary, of_teacher.temperature);
        let params = SoftTargetParams { vocabulary, temperature, weights: weights.as_ref() };
        let loss = chunked(&states, &decoder, chunk, &teacher_logits, &params, &*of_teacher.kernels);
        LossValue { loss, correct: None, detection: None, logits: None }
    }
}

/// Computes the loss of the inputs of the decoder, `states` \[n, width\], for at most `chunk` tokens at a time.
/// `teacher_logits` returns the logits of the teacher for a number of tokens from the first one on. `params` has the weights of all
/// tokens.
fn chunked(
    states: &Tensor,
    decoder: &VocabularyDecoder,
    chunk: i64,
    teacher_logits: &dyn Fn(i64, i64) -> Tensor,
    params: &SoftTargetParams<'_>,
    kernels: &dyn Kernels,
) -> Tensor {
    let mut sum = WeightedSum::new(states, decoder);
    tch::no_grad(|| {
        let (detached, all) = (states.detach(), states.size()[0]);
        for first in (0..all).step_by(chunk as usize) {
            let count = chunk.min(all - first);
            let rows = detached.narrow(0, first, count);
            let weights = params.weights.map(|weights| weights.narrow(0, first, count));
            let params = SoftTargetParams { weights: weights.as_ref(), ..*params };
            let score = || {
                let (student, teacher) = (decoder.logits(&rows), teacher_logits(first, count));
                kernels.soft_targets([&student, &teacher], &params)
            };
            sum.add(&rows, score());
        }
    });
    sum.finish(states)
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
    fn add(&mut self, rows: &Tensor, kernels::SoftTargetGradient { loss, gradient }: kernels::SoftTargetGradient) {
        self.loss = Some(match self.loss.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        let Some(gradients) = &mut self.gradients else { return };
        gradients.bias += gradient.sum_dim_intlist(0, false, Kind::Float);
        let gradient = gradient.to_kind(rows.kind());
        gradients.states.push(gradient.matmul(&self.decoder.compute_weight).to_kind(Kind::Float));
        torch::add_product(&mut gradients.weight, &gradient.tr(), rows);
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
    use crate::kernels::Host;
    use crate::kernels::tests::emulated;

    /// The backward pass starts from a scaled loss, as in training.
    #[test]
    fn loss_and_gradients_match_torch_in_chunks_of_any_size() {
        check_golden(&Host);
        check_golden(&emulated());
    }

    fn check_golden(kernels: &dyn Kernels) {
        let golden = Golden::read();
        let [tokens, width, _, vocabulary] = golden.sizes;
        let teacher = tensor(&golden.teacher_logits, &[tokens, vocabulary]);
        let weights = tensor(&golden.weights, &[tokens]);
        for case in &golden.soft_targets {
            for chunk in [1, 3, 5, 10, 64] {
                let states = parameter(&golden.states, &[tokens, width]);
                let weight = parameter(&golden.weight, &[vocabulary, width]);
                let bias = parameter(&golden.bias, &[vocabulary]);
                let decoder = VocabularyDecoder::new(weight.shallow_clone(), bias.shallow_clone(), None, vocabulary);
                let logits = |first, count| teacher.narrow(0, first, count);
                let params = SoftTargetParams { vocabulary, temperature: case.temperature, weights: Some(&weights) };
                let score = || chunked(&states, &decoder, chunk, &logits, &params, kernels);
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
}
