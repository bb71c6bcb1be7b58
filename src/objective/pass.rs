//! Pass of an objective: a network, its input and the losses of its output.

use lambert_dataset::random::Key;
use tch::Tensor;

use super::{Loss, LossValue};
use crate::data::MicroBatch;
use crate::kernels::Kernels;
use crate::model::Encoder;
use crate::model::input::Input;

/// Output of a pass for a micro-batch, detached from the graph.
pub struct PassOutput {
    /// Hidden states of the last layer, \[batch, sequence, hidden\].
    pub hidden: Tensor,
    /// Predictions of each loss, \[targets, classes\]; `None` for a loss without targets.
    pub logits: Vec<Option<Tensor>>,
}

impl PassOutput {
    /// Takes the output if a later pass reads it. Otherwise drops the logits, to free memory before the backward pass.
    pub fn take(hidden: &Tensor, scores: &mut [Option<LossValue>], is_read: bool) -> Option<Self> {
        let logits: Vec<_> = scores.iter_mut().map(|scored| scored.as_mut()?.logits.take()).collect();
        is_read.then(|| Self { hidden: hidden.detach(), logits })
    }
}

/// Builds the input of a pass from the micro-batch and the outputs of earlier passes.
pub trait PassInput {
    /// Builds the input. `earlier` has the outputs of the earlier passes, in order. Random draws depend on `key`, which is
    /// derived from the seed and the step.
    fn make(&self, input: &Input, earlier: &[PassOutput], kernels: &dyn Kernels, key: Key) -> Input;
}

/// Pass of an objective. Its backward pass completes before the next pass starts, so that only
/// the activations of one pass are in memory.
pub struct Pass {
    /// Network.
    pub encoder: Encoder,
    losses: Vec<Box<dyn Loss>>,
    input: Option<Box<dyn PassInput>>,
    /// True if the pass is forward only, without dropout and gradients.
    pub is_frozen: bool,
}

impl Pass {
    /// Creates a pass that trains a network on the unchanged micro-batch.
    pub fn new(encoder: Encoder, losses: Vec<Box<dyn Loss>>) -> Self {
        Self { encoder, losses, input: None, is_frozen: false }
    }

    /// Creates a forward-only pass, without losses.
    pub fn frozen(encoder: Encoder) -> Self {
        Self { is_frozen: true, ..Self::new(encoder, Vec::new()) }
    }

    /// Sets the input.
    #[must_use]
    pub fn with_input(self, input: Box<dyn PassInput>) -> Self {
        Self { input: Some(input), ..self }
    }

    /// Adds losses after the others.
    #[must_use]
    pub fn with_losses(mut self, losses: Vec<Box<dyn Loss>>) -> Self {
        self.losses.extend(losses);
        self
    }

    /// Losses, in the order of the step records.
    pub fn losses(&self) -> impl Iterator<Item = &dyn Loss> {
        self.losses.iter().map(|loss| &**loss)
    }

    /// Input of the pass, if it differs from the micro-batch.
    pub fn replaced_input(&self, input: &Input, earlier: &[PassOutput], key: Key) -> Option<Input> {
        Some(self.input.as_ref()?.make(input, earlier, self.encoder.kernels(), key))
    }

    /// Computes each loss; `None` for a loss without targets in the micro-batch.
    pub fn score(&self, batch: &MicroBatch, input: &Input, hidden: &Tensor) -> Vec<Option<LossValue>> {
        let score = |loss: &dyn Loss| (loss.targets(batch) > 0).then(|| loss.score(&self.encoder.heads, hidden, input));
        self.losses().map(score).collect()
    }
}
