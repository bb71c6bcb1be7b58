//! CPU kernels: loops over slices, on the libtorch threads or on scoped threads.
//! No other file takes a slice of a tensor.

mod adamw;
mod chunks;
mod dropout;
mod gomp;
mod sample;
mod scaled;

use std::ptr::NonNull;

use lambert_config::run::OptimizerKind;
use tch::{Device, Kind, Tensor};

use super::{Address, DropoutParams, Kernels, OptimizerUpdate, ParamUpdate, StateBuffers, TokenDraws, Values};
use chunks::Slices;

/// Kernels of the CPU, for tensors in host memory.
#[derive(Debug, Default, Clone, Copy)]
pub struct Host;

impl Kernels for Host {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, Device::Cpu))
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        match values {
            Values::I32(values) => Tensor::from_slice(values),
            Values::F32(values) => Tensor::from_slice(values),
            Values::U8(values) => Tensor::from_slice(values),
        }
    }

    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
        let start = bytes_from(tensor, first, into.len());
        // SAFETY: `start` is followed by `into.len()` bytes of the tensor storage, which
        // lives as long as the tensor handle.
        unsafe { std::ptr::copy_nonoverlapping(start, into.as_mut_ptr(), into.len()) }
    }

    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]) {
        let start = bytes_from(tensor, first, bytes.len());
        // SAFETY: as in `read`. Concurrent writers write disjoint bytes, and nothing reads these bytes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        slice::<f64>(&numbers.contiguous(), Kind::Double).to_vec()
    }

    fn address(&self, tensor: &Tensor, element: usize) -> Option<Address> {
        check(tensor, Kind::Float);
        let pointer = NonNull::new(bytes_from(tensor, size_of::<f32>() * element, size_of::<f32>()).cast())?;
        Some(Address { pointer, device: None })
    }

    fn with_host_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        work(floats_mut(tensor));
    }

    fn seed(&self, seed: u64) {
        tch::manual_seed(seed as i64);
    }

    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
        let mut factors = Tensor::empty(shape, (Kind::Float, Device::Cpu));
        let (samples, filled) = (slice::<i64>(params.samples, Kind::Int64), floats_mut(&mut factors));
        match params.positions.map(|positions| slice::<i64>(positions, Kind::Int64)) {
            Some(positions) => {
                dropout::fill_tokens(filled, shape[shape.len() - 1] as usize, params, samples, positions);
            }
            None => dropout::fill(filled, shape, params, samples),
        }
        factors
    }

    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
        let width = logits.size()[1] as usize;
        let probabilities = tch::no_grad(|| logits.softmax(-1, Kind::Float).contiguous());
        let [samples, positions] = [draws.samples, draws.positions].map(|tensor| slice::<i64>(tensor, Kind::Int64));
        let probabilities = slice::<f32>(&probabilities, Kind::Float);
        Tensor::from_slice(&sample::tokens(probabilities, width, draws.key, samples, positions))
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        let sum = chunks::parallel_sum_of_squares(slice::<f32>(values, Kind::Float), threads());
        Tensor::from(sum.sqrt())
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        Tensor::from(chunks::digest(slice::<f32>(values, Kind::Float), threads()) as i64)
    }

    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
        let norm = slice::<f64>(update.norm, Kind::Double)[0];
        if !norm.is_finite() {
            return None;
        }
        let slices = Slices {
            weights: floats_mut(buffers.weights),
            gradients: floats_mut(buffers.gradients),
            first: floats_mut(buffers.first_moments),
            second: floats_mut(buffers.second_moments),
        };
        let step_sizes = apply_update(slices, update, norm, threads());
        if let Some(bf16_weights) = &mut buffers.bf16_weights {
            bf16_weights.copy_(buffers.weights);
        }
        step_sizes.map(|step_sizes| Tensor::from_slice(&step_sizes))
    }
}

/// Applies the update. The result does not depend on the number of threads. For LAMB and StableAdamW, returns the step
/// sizes.
fn apply_update(slices: Slices<'_>, update: &OptimizerUpdate<'_>, norm: f64, threads: usize) -> Option<Vec<f32>> {
    let clip = update.clip_norm > 0.0 && norm > update.clip_norm;
    let scale = if clip { (update.clip_norm / norm) as f32 } else { 1.0 };
    let mut chunks = chunks::split(&update.parameters, slices);
    match update.kind {
        OptimizerKind::Lamb | OptimizerKind::StableAdamw => {
            Some(scaled::update(update.trust_ratio, &mut chunks, scale, threads))
        }
        OptimizerKind::Adamw | OptimizerKind::AdamBert | OptimizerKind::Muon => {
            adamw::update(&mut chunks, scale, threads);
            None
        }
    }
}

impl ParamUpdate {
    /// Updates the moments of one element and returns `m_hat / (sqrt(v_hat) + eps)`.
    #[inline]
    fn direction(&self, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        *first = self.beta1 * *first + self.one_minus_beta1 * gradient;
        *second = self.beta2 * *second + self.one_minus_beta2 * gradient * gradient;
        *first * self.inv_bias_correction1 / (self.root(*second) + self.eps)
    }

    /// `sqrt(v_hat)` of a second moment.
    #[inline]
    fn root(&self, second: f32) -> f32 {
        (second * self.inv_bias_correction2).sqrt()
    }
}

fn threads() -> usize {
    tch::get_num_threads().max(1) as usize
}

/// Elements of a contiguous tensor of `T` in host memory, without a copy.
fn slice<T>(tensor: &Tensor, kind: Kind) -> &[T] {
    check(tensor, kind);
    // SAFETY: `check` verified a contiguous tensor in host memory, and callers pass the kind of T. The
    // storage lives as long as the borrowed handle.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<T>(), tensor.numel()) }
}

/// Mutable elements of a contiguous f32 tensor in host memory. The mutable borrow prevents a second slice through
/// this handle.
fn floats_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor, Kind::Float);
    // SAFETY: as in `slice`. Other views of the storage exist (the parameters), but a single thread runs all tensor
    // code. No other tensor code runs while the slice is alive.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) }
}

/// Returns the address of byte `first` of a tensor, after checking that `count` bytes follow.
fn bytes_from(tensor: &Tensor, first: usize, count: usize) -> *mut u8 {
    check(tensor, tensor.kind());
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    assert!(
        first.checked_add(count).is_some_and(|end| end <= bytes),
        "{count} bytes from {first} are out of range for a tensor of {bytes} bytes"
    );
    // SAFETY: within the storage, as checked above.
    unsafe { tensor.data_ptr().cast::<u8>().add(first) }
}

fn check(tensor: &Tensor, kind: Kind) {
    let plain = tensor.is_contiguous() && tensor.kind() == kind && tensor.device() == Device::Cpu;
    assert!(plain, "expected a contiguous {kind:?} tensor in host memory, got {tensor:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::{RandomValues, SHAPES, update};
    use lambert_config::run::Optimizer as Settings;

    #[test]
    fn result_is_independent_of_thread_count() {
        for kind in [OptimizerKind::Lamb, OptimizerKind::Adamw, OptimizerKind::AdamBert, OptimizerKind::StableAdamw] {
            let settings = Settings { kind, ..Settings::default() };
            let after = |threads: usize| {
                let mut random = RandomValues::new(6);
                let (mut weights, mut gradients) = (random.weights(&SHAPES), random.values(&SHAPES, 1.0));
                let (mut first, mut second) = (random.values(&SHAPES, 0.1), vec![0.5; weights.len()]);
                let norm = chunks::parallel_sum_of_squares(&gradients, threads).sqrt();
                let slices =
                    Slices { weights: &mut weights, gradients: &mut gradients, first: &mut first, second: &mut second };
                apply_update(slices, &update(&SHAPES, &settings, 1e-2, 2, &Tensor::from(norm)), norm, threads);
                (weights, first, second, norm)
            };
            let alone = after(1);
            [2, 3, 7, 64].iter().for_each(|&threads| assert_eq!(after(threads), alone));
        }
    }

    #[test]
    fn write_stays_within_its_range() {
        let tensor = Host.zeros(&[4], Kind::Float);
        Host.write(&tensor, 5, &2.0_f32.to_le_bytes()[1..]);
        let mut bytes = [9; 8];
        Host.read(&tensor, 4, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 64, 0, 0, 0, 0]);
        assert!(crate::torch::guard(|| Host.write(&tensor, 14, &[0; 3])).is_err());
    }
}
