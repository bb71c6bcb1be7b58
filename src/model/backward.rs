//! The backward pass, segment by segment: with what the forward pass kept, or with activations that are computed again.

use lambert_plan::architecture::Value;
use tch::Tensor;

use super::{Dropout, Encoder};
use crate::model::input::Input;
use crate::torch;

/// A segment on the way forward.
struct Passed {
    /// Its outputs as later segments read them: cut off from its graph, and with a gradient of their own.
    leaves: Vec<Tensor>,
    /// Its outputs with their graph; `None` where that is computed again.
    outputs: Option<Vec<Tensor>>,
}

impl Encoder {
    /// Forward pass, `loss` of the encoder's output \[rows, width, hidden\] (a scalar, and what else the caller wants), and
    /// backward pass, which tells `passed` how many segments it has gone through: the heads are the first. With
    /// [`Encoder::recompute`] the activations of one segment are in memory at a time (arXiv 1604.06174); dropout, which is no
    /// stream, is drawn again as it was.
    pub fn backward<T>(
        &self,
        input: &Input,
        dropout: Dropout<'_>,
        loss: impl FnOnce(&Tensor) -> (Tensor, T),
        passed: &mut dyn FnMut(usize),
    ) -> T {
        let keep = !self.recompute;
        let mut segments = Vec::<Passed>::with_capacity(self.segments.len());
        for index in 0..self.segments.len() {
            let forward = || self.run(index, |value| &segments[value.segment].leaves[value.output], input, dropout);
            let outputs = if keep { forward() } else { tch::no_grad(forward) };
            let leaves = outputs.iter().map(|output| leaf(output, !keep || output.requires_grad())).collect();
            segments.push(Passed { leaves, outputs: keep.then_some(outputs) });
        }
        let (scalar, rest) = loss(&self.finish(segments[self.top.segment].leaves[self.top.output].shallow_clone()));
        scalar.backward();
        passed(1);
        while let Some(Passed { leaves, outputs }) = segments.pop() {
            let gradients: Vec<Tensor> = leaves.iter().map(Tensor::grad).collect();
            drop(leaves);
            // Where everything below is frozen, or nothing was asked, there is no way back.
            if gradients.iter().any(Tensor::defined) {
                let read = |value: Value| &segments[value.segment].leaves[value.output];
                let outputs = outputs.unwrap_or_else(|| self.run(segments.len(), read, input, dropout));
                let (outputs, gradients): (Vec<_>, Vec<_>) = outputs
                    .into_iter()
                    .zip(gradients)
                    .filter(|(output, gradient)| output.requires_grad() && gradient.defined())
                    .unzip();
                torch::backward(&outputs, &gradients);
            }
            passed(self.segments() - segments.len());
        }
        rest
    }
}

fn leaf(tensor: &Tensor, requires_grad: bool) -> Tensor {
    tensor.detach().set_requires_grad(requires_grad)
}
