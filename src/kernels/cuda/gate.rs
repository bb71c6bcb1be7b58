//! Gated activation functions, with the kernels of gate.cu.

use std::sync::Arc;

use lambert_config::run::Activation;
use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice, THREADS};
use crate::torch::operation::{self, Operation};

/// True if the kernels support halves of `width` elements.
pub fn fits(width: i64) -> bool {
    width % 4 == 0
}

/// Implements [`Kernels::gate`](crate::kernels::Kernels::gate).
pub fn apply<C: KernelDevice + 'static>(device: &Arc<C>, x: &Tensor, activation: Activation) -> Tensor {
    operation::apply(&[x], Gate { device: Arc::clone(device), activation })
}

struct Gate<C> {
    device: Arc<C>,
    activation: Activation,
}

impl<C: KernelDevice> Gate<C> {
    /// Launches the kernel `name`, which reads `x` after the tensors of `arguments`.
    fn launch(&self, name: &str, arguments: KernelArguments, x: &Tensor) {
        let half = x.size().last().map_or(0, |width| *width as usize / 2);
        let groups = x.numel() / 8;
        // Numbers in gate.cu.
        let activation = match self.activation {
            Activation::Gelu => 0,
            Activation::GeluTanh => 1,
            Activation::Silu => 2,
        };
        let arguments = arguments.tensor(x).u32(groups).u32(half / 4).u32(activation);
        super::launch(&*self.device, &format!("{name}_{}", super::suffix(x)), groups.div_ceil(THREADS), arguments);
    }
}

impl<C: KernelDevice> Operation for Gate<C> {
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let x = inputs[0].contiguous();
        let half = x.size().last().map_or(0, |width| width / 2);
        let out = x.narrow(-1, 0, half).empty_like();
        self.launch("gate", KernelArguments::new().tensor(&out), &x);
        vec![out, x]
    }

    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
        let (gradient, x) = (gradient.contiguous(), &saved[0]);
        let of_x = x.empty_like();
        self.launch("gate_backward", KernelArguments::new().tensor(&of_x).tensor(&gradient), x);
        vec![of_x]
    }
}
