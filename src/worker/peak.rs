//! Peaks of a rank: the matmul throughput of its device, which is the reference for the utilization of a run, and its
//! memory.

use tch::{Kind, Tensor};

use super::stopwatch::Stopwatch;
use crate::kernels::Kernels;
use crate::torch::{self, LinearParams, TorchError};

/// Measures the matmul throughput of this rank, FLOP/s, with square matrices of dtype `kind`. Returns the best of several runs of
/// the two functions that a training step uses (MKL and oneDNN on the CPU). The matrices are random, because a
/// GPU computes constant matrices about 10 % faster.
pub fn matmul_peak(kernels: &dyn Kernels, kind: Kind, is_gpu: bool) -> Result<f64, TorchError> {
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
                let mut watch = Stopwatch::start();
                // Fetching an element waits for the product.
                kernels.fetch(&product().flatten(0, -1).narrow(0, 0, 1).to_kind(Kind::Double));
                best = best.min(watch.lap());
            }
        }
        2.0 * (width as f64).powi(3) / best
    })
}

/// Returns the peak memory of this rank, bytes: the peak of the libtorch allocator on a GPU, otherwise the peak resident
/// memory of this process.
pub fn memory(kernels: &dyn Kernels) -> Option<u64> {
    kernels.peak_memory().or_else(resident)
}

/// Peak resident memory of this program. Unlike `ru_maxrss`, `VmHWM` does not include the program that called `exec`.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Host;

    #[test]
    fn peak_memory_includes_memory_that_was_freed() {
        let before = memory(&Host).unwrap();
        drop(std::hint::black_box(vec![1_u8; 64 << 20]));
        let after = memory(&Host).unwrap();
        assert!(after >= 64 << 20 && after >= before, "{before}, {after}");
    }
}
