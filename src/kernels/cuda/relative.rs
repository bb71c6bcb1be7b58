//! Attention weights with relative positions, with the kernels of relative.cu.

use std::sync::Arc;

use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice, THREADS};
use super::row_dropout::RowDropout;
use crate::kernels::{DropoutParams, RelativeScores};
use crate::torch::operation::{self, Operation};

/// Maximum number of keys of a row: a thread holds 32 of them.
const MAX_LENGTH: i64 = 1024;
/// Rows that a block computes, one in each warp.
const WARPS: usize = THREADS / 32;

/// True if the kernels support samples of `length` tokens.
pub fn fits(length: i64) -> bool {
    length <= MAX_LENGTH
}

/// Implements [`Kernels::relative_softmax`](crate::kernels::Kernels::relative_softmax).
pub fn apply<C: KernelDevice + 'static>(
    device: &Arc<C>,
    scores: &RelativeScores<'_>,
    mask: Option<&Tensor>,
    dropout: Option<&DropoutParams<'_>>,
) -> Tensor {
    let operation = RelativeSoftmax {
        device: Arc::clone(device),
        mask: mask.map(Tensor::contiguous),
        dropout: dropout.map(RowDropout::new),
    };
    operation::apply(&[scores.contents, scores.queries, scores.keys], operation)
}

struct RelativeSoftmax<C> {
    device: Arc<C>,
    mask: Option<Tensor>,
    dropout: Option<RowDropout>,
}

impl<C: KernelDevice> RelativeSoftmax<C> {
    /// Launches a kernel with the dropout and the shape of `contents` after `arguments`.
    fn launch(&self, name: &str, arguments: KernelArguments, contents: &Tensor) {
        let shape = contents.size();
        let [batch, heads, length, _] = shape[..] else { panic!("relative positions: unsupported shape {shape:?}") };
        let arguments = RowDropout::append(self.dropout.as_ref(), arguments);
        let arguments = arguments.u32(batch as usize).u32(heads as usize).u32(length as usize);
        let rows = (batch * heads * length) as usize;
        super::launch(&*self.device, &format!("{name}_{}", super::suffix(contents)), rows.div_ceil(WARPS), arguments);
    }
}

impl<C: KernelDevice> Operation for RelativeSoftmax<C> {
    /// Returns the weights after dropout, then the weights before dropout.
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let [contents, queries, keys] = [0, 1, 2].map(|index: usize| inputs[index].contiguous());
        let weights = contents.empty_like();
        let out = self.dropout.as_ref().map(|_| contents.empty_like());
        let arguments = KernelArguments::new().optional_tensor(out.as_ref()).tensor(&weights);
        let arguments = arguments.tensor(&contents).tensor(&queries).tensor(&keys).optional_tensor(self.mask.as_ref());
        self.launch("relative_softmax", arguments, &contents);
        vec![out.unwrap_or_else(|| weights.shallow_clone()), weights]
    }

    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
        let (gradient, weights) = (gradient.contiguous(), &saved[0]);
        let shape = weights.size();
        let by_distance = [shape[1], shape[0] * shape[2], 2 * shape[2] - 1];
        let of_contents = weights.empty_like();
        // Uninitialized values on the same device.
        let first = weights.flatten(0, -1).narrow(0, 0, 1);
        let [of_queries, of_keys] = [(); 2].map(|()| first.expand(by_distance, false).empty_like());
        let arguments = KernelArguments::new().tensor(&of_contents).tensor(&of_queries).tensor(&of_keys);
        self.launch("relative_softmax_backward", arguments.tensor(&gradient).tensor(weights), weights);
        vec![of_contents, of_queries, of_keys]
    }
}
