//! The backward pass, with what the forward pass kept or with activations that are computed again.

use tch::{Kind, Tensor};

use super::{Bert, Dropout};
use crate::input::Input;

impl Bert {
    /// Forward pass, `loss` of the encoder's output \[rows, width, hidden\] (a scalar, and what else the caller wants), and
    /// backward pass. With [`Bert::recompute`] one layer's activations are in memory at a time (arXiv 1604.06174 with
    /// segments of one layer); dropout, which is no stream, is drawn again as it was.
    pub fn backward<T>(&self, input: &Input, dropout: Dropout<'_>, loss: impl FnOnce(&Tensor) -> (Tensor, T)) -> T {
        if !self.recompute {
            let (scalar, rest) = loss(&self.forward(input, dropout));
            scalar.backward();
            return rest;
        }
        let (inputs, last) = tch::no_grad(|| self.inputs(input, dropout));
        let last = leaf(&last);
        let (scalar, rest) = loss(&self.finish(last.shallow_clone()));
        scalar.backward();
        let mut gradient = last.grad();
        for (layer, below) in self.layers.iter().zip(inputs).rev() {
            let below = leaf(&below);
            backward_from(&layer.forward(&below, input.attendable.as_ref(), dropout), &gradient);
            gradient = below.grad();
        }
        backward_from(&self.embed(input, dropout), &gradient);
        rest
    }

    /// What goes into each layer, and what comes out of the last.
    fn inputs(&self, input: &Input, dropout: Dropout<'_>) -> (Vec<Tensor>, Tensor) {
        let mut hidden = self.embed(input, dropout);
        let mut inputs = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let above = layer.forward(&hidden, input.attendable.as_ref(), dropout);
            inputs.push(std::mem::replace(&mut hidden, above));
        }
        (inputs, hidden)
    }
}

fn leaf(tensor: &Tensor) -> Tensor {
    tensor.detach().set_requires_grad(true)
}

/// Goes back from `output`, whose gradient is given; there is no way back where all parameters are frozen.
fn backward_from(output: &Tensor, gradient: &Tensor) {
    if output.requires_grad() {
        (output * gradient).sum(Kind::Float).backward();
    }
}
