//! Backward pass, one segment at a time. Activations are stored or recomputed.

use lambert_plan::architecture::SegmentOutput;
use tch::Tensor;

use super::{Dropout, Encoder};
use crate::model::input::Input;
use crate::torch;

/// Forward state of a segment.
struct SegmentActivations {
    /// Detached outputs, which are autograd leaves. Later segments read these outputs, and the backward passes of
    /// later segments accumulate gradients in them.
    leaves: Vec<Tensor>,
    /// Outputs with their autograd graph; `None` if the backward pass recomputes them.
    outputs: Option<Vec<Tensor>>,
}

impl Encoder {
    /// Runs the forward pass, `loss`, and the backward pass. `loss` receives the encoder output \[batch, sequence,
    /// hidden\]. It returns a scalar and a second value, which this function returns.
    ///
    /// After the backward pass of each segment, `on_segment_done` receives the number of segments whose
    /// backward pass is complete. The heads come first. With [`Encoder::recompute`], the activations of only
    /// one segment are in memory at a time (arXiv 1604.06174). Recomputation repeats the dropout masks,
    /// because the dropout key determines them.
    pub fn backward<T>(
        &self,
        input: &Input,
        dropout: Dropout<'_>,
        loss: impl FnOnce(&Tensor) -> (Tensor, T),
        on_segment_done: &mut dyn FnMut(usize),
    ) -> T {
        let keep = !self.recompute;
        let mut segments = Vec::<SegmentActivations>::with_capacity(self.segments.len());
        for index in 0..self.segments.len() {
            let forward =
                || self.forward_segment(index, |value| &segments[value.segment].leaves[value.output], input, dropout);
            let outputs = if keep { forward() } else { tch::no_grad(forward) };
            let leaves = outputs.iter().map(|output| leaf(output, !keep || output.requires_grad())).collect();
            segments.push(SegmentActivations { leaves, outputs: keep.then_some(outputs) });
        }
        let (scalar, rest) = loss(
            &self.apply_final_norm(segments[self.heads_input.segment].leaves[self.heads_input.output].shallow_clone()),
        );
        scalar.backward();
        on_segment_done(1);
        while let Some(SegmentActivations { leaves, outputs }) = segments.pop() {
            let gradients: Vec<Tensor> = leaves.iter().map(Tensor::grad).collect();
            drop(leaves);
            // Gradients are undefined if the micro-batch has no targets, or if all segments up to this one are frozen.
            if gradients.iter().any(Tensor::defined) {
                let read = |value: SegmentOutput| &segments[value.segment].leaves[value.output];
                let outputs = outputs.unwrap_or_else(|| self.forward_segment(segments.len(), read, input, dropout));
                let (outputs, gradients): (Vec<_>, Vec<_>) = outputs
                    .into_iter()
                    .zip(gradients)
                    .filter(|(output, gradient)| output.requires_grad() && gradient.defined())
                    .unzip();
                torch::backward(&outputs, &gradients);
            }
            on_segment_done(self.segments() - segments.len());
        }
        rest
    }
}

fn leaf(tensor: &Tensor, requires_grad: bool) -> Tensor {
    tensor.detach().set_requires_grad(requires_grad)
}
