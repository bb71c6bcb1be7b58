//! GELU after a linear layer. Its backward pass (gelu.cu) also sums the gradient of the layer's bias.

use std::sync::Arc;

use lambert_config::run::Activation;
use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice};
use super::{gradient_of, suffix};
use crate::torch::operation::{self, Operation};

/// Number of columns that a block computes. Must equal `GELU_COLUMNS` in gelu.cu.
const COLUMNS: usize = 1024;
/// Number of rows that a thread reads before it computes. Must equal `GELU_ROWS` in gelu.cu.
const ROWS: usize = 4;
/// Maximum number of blocks: six for each multiprocessor of an H100.
const MAX_BLOCKS: usize = 792;

/// True if the kernels support this activation of rows of `width` elements.
pub fn fits(activation: Activation, width: i64) -> bool {
    matches!(activation, Activation::Gelu | Activation::GeluTanh) && width % 4 == 0
}

/// Implements [`Kernels::activate`](crate::kernels::Kernels::activate).
pub fn apply<C: KernelDevice + 'static>(device: &Arc<C>, x: &Tensor, activation: Activation, bias: &Tensor) -> Tensor {
    let is_tanh = activation == Activation::GeluTanh;
    operation::apply(&[x], Gelu { device: Arc::clone(device), is_tanh, bias: bias.shallow_clone() })
}

struct Gelu<C> {
    device: Arc<C>,
    is_tanh: bool,
    /// Bias of the linear layer, f32 \[width\].
    bias: Tensor,
}

impl<C: KernelDevice> Operation for Gelu<C> {
    /// Returns the result and x.
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let x = inputs[0].contiguous();
        vec![x.gelu(if self.is_tanh { "tanh" } else { "none" }), x]
    }

    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
        let (gradient, x) = (gradient.contiguous(), &saved[0]);
        let width = self.bias.numel();
        let rows = x.numel() / width;
        let chunks = width.div_ceil(COLUMNS);
        let row_blocks = rows.div_ceil(ROWS).clamp(1, MAX_BLOCKS.div_ceil(chunks));
        let of_x = x.empty_like();
        let partials = self.bias.detach().narrow(0, 0, 1).expand([row_blocks as i64, width as i64], false).empty_like();
        let arguments = KernelArguments::new().tensor(&of_x).tensor(&partials).tensor(&gradient).tensor(x);
        let arguments = arguments.u64(rows as u64).u32(width).u32(row_blocks).u32(self.is_tanh.into());
        super::launch(&*self.device, &format!("gelu_backward_{}", suffix(x)), row_blocks * chunks, arguments);
        super::add_column_sums(&*self.device, &[gradient_of(&self.bias)], &partials);
        vec![of_x]
    }
}
