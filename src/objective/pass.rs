//! A pass: a network, its input and the losses of its output.

use tch::Tensor;

use super::{Loss, Scored};
use crate::data::MicroBatch;
use crate::model::Encoder;
use crate::model::input::Input;

/// The output of a pass for a micro-batch, cut off from its graph.
pub struct Output {
    /// Hidden states of the last layer, \[rows, width, hidden\].
    pub hidden: Tensor,
    /// The predictions of each of its losses, \[targets, classes\]; `None` of a loss that had no targets.
    pub logits: Vec<Option<Tensor>>,
}

impl Output {
    /// Of these, if a later pass reads it. What is not read is freed before the backward pass.
    pub fn take(hidden: &Tensor, scores: &mut [Option<Scored>], is_read: bool) -> Option<Self> {
        let logits: Vec<_> = scores.iter_mut().map(|scored| scored.as_mut()?.logits.take()).collect();
        is_read.then(|| Self { hidden: hidden.detach(), logits })
    }
}

/// Makes the input of a pass from the micro-batch and from the outputs of the passes before it.
pub trait PassInput {
    /// The input. `earlier` has the outputs of the passes before, in their order.
    fn make(&self, input: &Input, earlier: &[Output]) -> Input;
}

/// A pass. Its backward pass is done before the next pass begins, so that the activations of one pass are in memory at a time.
pub struct Pass {
    /// The network.
    pub encoder: Encoder,
    losses: Vec<Box<dyn Loss>>,
    input: Option<Box<dyn PassInput>>,
    /// Whether it goes forward only, without dropout, and changes no weights.
    pub is_frozen: bool,
}

impl Pass {
    /// A network that is trained on the micro-batch as it is.
    pub fn new(encoder: Encoder, losses: Vec<Box<dyn Loss>>) -> Self {
        Self { encoder, losses, input: None, is_frozen: false }
    }

    /// A network that only computes: nothing is learnt by it.
    pub fn frozen(encoder: Encoder) -> Self {
        Self { is_frozen: true, ..Self::new(encoder, Vec::new()) }
    }

    /// The same over another input.
    #[must_use]
    pub fn with_input(self, input: Box<dyn PassInput>) -> Self {
        Self { input: Some(input), ..self }
    }

    /// Its losses, in the order of the records.
    pub fn losses(&self) -> impl Iterator<Item = &dyn Loss> {
        self.losses.iter().map(|loss| &**loss)
    }

    /// Its input, if that is not the micro-batch as it is.
    pub fn made_input(&self, input: &Input, earlier: &[Output]) -> Option<Input> {
        Some(self.input.as_ref()?.make(input, earlier))
    }

    /// The value of each loss; `None` of a loss that has no targets in the micro-batch.
    pub fn score(&self, batch: &MicroBatch, input: &Input, hidden: &Tensor) -> Vec<Option<Scored>> {
        let score = |loss: &dyn Loss| (loss.targets(batch) > 0).then(|| loss.score(&self.encoder.heads, hidden, input));
        self.losses().map(score).collect()
    }
}
