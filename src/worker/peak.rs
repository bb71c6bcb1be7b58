//! The speed of a device in a matrix product: what the utilization of a run is measured against.

use tch::{Kind, Tensor};

use super::stopwatch::Stopwatch;
use crate::kernels::Kernels;
use crate::torch::{self, TorchError};

/// Width of the matrices whose product shows what a device can do: a card needs larger ones.
pub fn peak_width(card: bool) -> i64 {
    if card { 8192 } else { 1024 }
}

/// Floating-point operations a second of this rank in a product of two square matrices of `width` in `kind`: the best of a few
/// by each of the two functions that a training step uses (in main memory those are MKL and oneDNN).
pub fn matmul_peak(kernels: &dyn Kernels, kind: Kind, width: i64) -> Result<f64, TorchError> {
    torch::guard(|| {
        let ones = |shape: &[i64]| kernels.zeros(shape, kind) + 1.0;
        let (a, bias) = (ones(&[width, width]), ones(&[width]));
        let products: [&dyn Fn() -> Tensor; 2] = [&|| a.matmul(&a), &|| torch::linear(&a, &a, &bias, None)];
        let mut best = f64::INFINITY;
        for _ in 0..6 {
            for product in products {
                let mut watch = Stopwatch::start();
                // A number of it, which has to be waited for.
                kernels.fetch(&product().flatten(0, -1).narrow(0, 0, 1).to_kind(Kind::Double));
                best = best.min(watch.lap());
            }
        }
        2.0 * (width as f64).powi(3) / best
    })
}
