//! The backward pass, layer by layer: with what the forward pass kept, or with activations that are computed again.

use tch::Tensor;

use super::{Bert, Dropout};
use crate::input::Input;
use crate::torch;

/// How far the backward pass has come: the gradients of these parameters are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// Of all that lies above the layers.
    Heads,
    /// And of this layer and those above it.
    Layer(usize),
    /// Of all.
    All,
}

/// A layer on the way forward.
struct Pass {
    /// What goes into it.
    below: Tensor,
    /// What comes out, with the way back; `None` where that is computed again.
    above: Option<Tensor>,
}

impl Bert {
    /// Forward pass, `loss` of the encoder's output \[rows, width, hidden\] (a scalar, and what else the caller wants), and
    /// backward pass, which tells `passed` how far it has come. With [`Bert::recompute`] one layer's activations are in memory
    /// at a time (arXiv 1604.06174 with segments of one layer); dropout, which is no stream, is drawn again as it was.
    pub fn backward<T>(
        &self,
        input: &Input,
        dropout: Dropout<'_>,
        loss: impl FnOnce(&Tensor) -> (Tensor, T),
        passed: &mut dyn FnMut(Passed),
    ) -> T {
        let keep = !self.recompute;
        let embed = || self.embed(input, dropout);
        let forward =
            |layer: usize, below: &Tensor| self.layers[layer].forward(below, input.attendable.as_ref(), dropout);
        let embedded = keep.then(embed);
        let mut hidden =
            embedded.as_ref().map_or_else(|| leaf(&tch::no_grad(embed), true), |kept| leaf(kept, kept.requires_grad()));
        let mut passes = Vec::with_capacity(self.layers.len());
        for layer in 0..self.layers.len() {
            let above = if keep { forward(layer, &hidden) } else { tch::no_grad(|| forward(layer, &hidden)) };
            let next = leaf(&above, !keep || above.requires_grad());
            passes.push(Pass { below: std::mem::replace(&mut hidden, next), above: keep.then_some(above) });
        }
        let (scalar, rest) = loss(&self.finish(hidden.shallow_clone()));
        scalar.backward();
        passed(Passed::Heads);
        // Where everything below is frozen, or nothing was asked, there is no way back.
        let mut gradient = hidden.grad();
        drop(hidden);
        for (layer, Pass { below, above }) in passes.into_iter().enumerate().rev() {
            if gradient.defined() {
                torch::backward(&above.unwrap_or_else(|| forward(layer, &below)), &gradient);
                gradient = below.grad();
            }
            passed(Passed::Layer(layer));
        }
        if gradient.defined() {
            let embedded = embedded.unwrap_or_else(embed);
            if embedded.requires_grad() {
                torch::backward(&embedded, &gradient);
            }
        }
        passed(Passed::All);
        rest
    }
}

fn leaf(tensor: &Tensor, requires_grad: bool) -> Tensor {
    tensor.detach().set_requires_grad(requires_grad)
}
