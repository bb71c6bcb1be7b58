//! Matmul throughput of the device of a rank, which is the reference for the utilization of a run.

use tch::{Kind, Tensor};

use crate::kernels::Kernels;
use crate::torch::{self, LinearParams, TorchError};

/// Measures the matmul throughput of this rank, FLOP/s, with square matrices of dtype `kind`. Returns the best of several runs of
/// the two functions that a training step uses (MKL and oneDNN on the CPU), on the clock of the device. The matrices are random,
/// because a GPU computes constant matrices about 10 % faster.
pub fn measure(kernels: &dyn Kernels, kind: Kind, is_gpu: bool) -> Result<f64, TorchError> {
    // A GPU needs larger matrices, and more of them until its clock is fast. On a CPU, each start of a rank waits for the products.
    let (width, rounds) = if is_gpu { (8192, 6) } else { (1024, 3) };
    torch::guard(|| {
        let random = |shape: &[i64]| kernels.zeros(shape, kind).normal_(0.0, 1.0);
        let (a, bias) = (random(&[width, width]), random(&[width]));
        let params = LinearParams { weight: a.shallow_clone(), bias: Some(bias) };
        let products: [&dyn Fn() -> Tensor; 2] = [&|| a.matmul(&a), &|| torch::linear(&a, &params, None)];
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            for product in products {
                let start = kernels.mark_time();
                drop(product());
                best = best.min(kernels.mark_time().seconds_since(&start));
            }
        }
        2.0 * (width as f64).powi(3) / best
    })
}
