//! Draws of tokens, with the kernels of sample.cu.

use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice};
use crate::kernels::TokenDraws;

/// Implements [`Kernels::sample_tokens`](crate::kernels::Kernels::sample_tokens).
pub fn draw<C: KernelDevice>(device: &C, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
    let [rows, width] = logits.size()[..] else { panic!("sample: unsupported shape {:?}", logits.size()) };
    let logits = match logits.stride()[..] {
        // The first columns of wider rows are read in place.
        [stride, 1] if stride > width => logits.detach().as_strided([rows, stride], [stride, 1], None),
        _ => logits.detach().contiguous(),
    };
    let ids = draws.samples.empty_like();
    let arguments = KernelArguments::new().tensor(&ids).tensor(&logits);
    let arguments = arguments.tensor(draws.samples).tensor(draws.positions).u64(draws.key.bits());
    let arguments = arguments.u32(width as usize).u32(logits.size()[1] as usize);
    super::launch(device, &format!("sample_tokens_{}", super::suffix(&logits)), rows as usize, arguments);
    ids
}
