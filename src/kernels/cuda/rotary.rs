//! Rotary positions of queries and keys, with the kernels of rotary.cu.

use std::sync::Arc;

use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice};
use crate::kernels::Angles;
use crate::torch::operation::{self, Operation};

/// Number of tokens that a block rotates. Must equal `ROTATED_TOKENS` in rotary.cu.
pub const TOKENS: usize = 8;

/// True if the kernels support heads of `head_size` elements.
pub fn fits(head_size: i64) -> bool {
    head_size % 8 == 0
}

/// Implements [`Kernels::rotate`](crate::kernels::Kernels::rotate).
pub fn apply<C: KernelDevice + 'static>(device: &Arc<C>, query_key_value: &Tensor, angles: Angles<'_>) -> Tensor {
    let [cosines, sines] = [angles.cosines, angles.sines].map(Tensor::shallow_clone);
    operation::apply(&[query_key_value], Rotate { device: Arc::clone(device), cosines, sines })
}

struct Rotate<C> {
    device: Arc<C>,
    cosines: Tensor,
    sines: Tensor,
}

impl<C: KernelDevice> Rotate<C> {
    /// Rotates by the angles times `sign`.
    fn rotate(&self, x: &Tensor, sign: f32) -> Tensor {
        let x = x.contiguous();
        let shape = x.size();
        let [batch, length, 3, heads, head_size] = shape[..] else { panic!("rotation: unsupported shape {shape:?}") };
        let (tokens, out) = ((batch * length) as usize, x.empty_like());
        let arguments = KernelArguments::new().tensor(&out).tensor(&x).tensor(&self.cosines).tensor(&self.sines);
        let arguments = arguments.u64(tokens as u64).u32(length as usize).u32(heads as usize);
        let kernel = format!("rotate_{}", super::suffix(&x));
        let arguments = arguments.u32(head_size as usize / 8).f32(sign);
        super::launch(&*self.device, &kernel, tokens.div_ceil(TOKENS), arguments);
        out
    }
}

impl<C: KernelDevice> Operation for Rotate<C> {
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        vec![self.rotate(&inputs[0], 1.0)]
    }

    fn backward(&self, gradient: &Tensor, _saved: &[Tensor]) -> Vec<Tensor> {
        vec![self.rotate(gradient, -1.0)]
    }
}
