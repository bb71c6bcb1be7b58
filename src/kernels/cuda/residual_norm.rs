//! Layer normalization of dropout(x) + residual, with the kernels of norm.cu.

use std::sync::Arc;

use tch::Tensor;

use super::launch::{KernelArguments, KernelDevice, THREADS};
use super::row_dropout::RowDropout;
use crate::kernels::{DropoutParams, NormParams};
use crate::torch::operation::{self, Operation};

/// Maximum width of a row: a thread of the backward pass computes four columns.
const MAX_WIDTH: i64 = 1024;
/// Rows that a block of the forward pass computes, one in each warp.
const WARPS: usize = THREADS / 32;
/// Rows that a block of the backward pass computes at a time. Must equal `ROWS` in norm.cu.
const ROWS: usize = 4;
/// Maximum number of blocks of the backward pass: three for each multiprocessor of an H100. Each block keeps sums over its
/// rows.
const MAX_BLOCKS: usize = 396;

/// True if the kernels support rows of `width` elements.
pub fn fits(width: i64) -> bool {
    width % 4 == 0 && width <= MAX_WIDTH
}

/// Implements [`Kernels::residual_norm`](crate::kernels::Kernels::residual_norm).
pub fn apply<C: KernelDevice + 'static>(
    device: &Arc<C>,
    x: &Tensor,
    residual: &Tensor,
    norm: &NormParams<'_>,
    dropout: Option<&DropoutParams<'_>>,
) -> Tensor {
    let operation = ResidualNorm {
        device: Arc::clone(device),
        weight: norm.weight.shallow_clone(),
        bias: norm.bias.shallow_clone(),
        linear_bias: norm.linear_bias.map(Tensor::shallow_clone),
        eps: norm.eps,
        dropout: dropout.map(RowDropout::new),
    };
    operation::apply(&[x, residual, norm.weight, norm.bias], operation)
}

/// The operation on one tensor, with its parameters.
struct ResidualNorm<C> {
    device: Arc<C>,
    weight: Tensor,
    bias: Tensor,
    linear_bias: Option<Tensor>,
    eps: f64,
    dropout: Option<RowDropout>,
}

/// Rows of a tensor \[..., positions, width\].
struct Rows {
    count: usize,
    positions: usize,
    width: usize,
}

impl Rows {
    fn of(tensor: &Tensor) -> Self {
        let shape = tensor.size();
        let [.., positions, width] = shape[..] else { panic!("layer normalization: unsupported shape {shape:?}") };
        Self { count: tensor.numel() / width as usize, positions: positions as usize, width: width as usize }
    }
}

/// Returns the gradient of a parameter, or `None` if the parameter is frozen.
fn gradient_of(parameter: &Tensor) -> Option<Tensor> {
    parameter.requires_grad().then(|| parameter.grad())
}

impl<C: KernelDevice> ResidualNorm<C> {
    /// Allocates f32 values on the device of the parameters.
    fn uninitialized(&self, shape: &[i64]) -> Tensor {
        self.weight.detach().narrow(0, 0, 1).expand(shape, false).empty_like()
    }
}

impl<C: KernelDevice> Operation for ResidualNorm<C> {
    /// Returns the result, the sum of dropout(x) and the residual, and the statistics of each row, f32 \[rows, 2\].
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let (x, residual) = (inputs[0].contiguous(), inputs[1].contiguous());
        let rows = Rows::of(&x);
        let (out, sum) = (x.empty_like(), x.empty_like());
        let statistics = self.uninitialized(&[rows.count as i64, 2]);
        let arguments =
            KernelArguments::new().tensor(&out).tensor(&sum).tensor(&statistics).tensor(&x).tensor(&residual);
        let arguments = RowDropout::append(self.dropout.as_ref(), arguments.tensor(&self.weight).tensor(&self.bias))
            .f32(self.eps as f32);
        let arguments = arguments.u64(rows.count as u64).u32(rows.positions).u32(rows.width);
        let kernel = format!("residual_norm_{}", super::suffix(&x));
        super::launch(&*self.device, &kernel, rows.count.div_ceil(WARPS), arguments);
        vec![out, sum, statistics]
    }

    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
        let (gradient, sum, statistics) = (gradient.contiguous(), &saved[0], &saved[1]);
        let rows = Rows::of(sum);
        let blocks = rows.count.div_ceil(ROWS).clamp(1, MAX_BLOCKS);
        let of_sum = sum.empty_like();
        let of_x = self.dropout.as_ref().map(|_| sum.empty_like());
        let partials = self.uninitialized(&[blocks as i64, 3, rows.width as i64]);
        let arguments = KernelArguments::new().optional_tensor(of_x.as_ref()).tensor(&of_sum).tensor(&partials);
        let arguments = arguments.tensor(&gradient).tensor(sum).tensor(statistics).tensor(&self.weight);
        let arguments = RowDropout::append(self.dropout.as_ref(), arguments)
            .u64(rows.count as u64)
            .u32(rows.positions)
            .u32(rows.width);
        let kernel = format!("residual_norm_backward_{}", super::suffix(sum));
        super::launch(&*self.device, &kernel, blocks, arguments.u32(blocks));
        let gradients = [Some(&self.weight), Some(&self.bias), self.linear_bias.as_ref()];
        let gradients = gradients.map(|parameter| parameter.and_then(gradient_of));
        let arguments = gradients.iter().fold(KernelArguments::new(), |all, one| all.optional_tensor(one.as_ref()));
        let arguments = arguments.tensor(&partials).u32(blocks).u32(rows.width);
        super::launch(&*self.device, "add_column_sums", (3 * rows.width).div_ceil(32), arguments);
        vec![of_x.unwrap_or_else(|| of_sum.shallow_clone()), of_sum]
    }
}
