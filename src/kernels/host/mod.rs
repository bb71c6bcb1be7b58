//! Main memory: loops over slices, on libtorch's threads or on threads of their own. The only file that takes a slice of a
//! tensor.

mod adamw;
mod chunks;
mod dropout;
mod gomp;
mod lamb;

use std::ptr::NonNull;

use lambert_config::run::OptimizerKind;
use tch::{Device, Kind, Tensor};

use super::{Address, Buffers, Draws, Kernels, Rule, Update, Values};
use chunks::Slices;

/// Main memory and its processor.
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
        // SAFETY: `start` is the first of as many bytes of the tensor's storage, which lives as long as the handle.
        unsafe { std::ptr::copy_nonoverlapping(start, into.as_mut_ptr(), into.len()) }
    }

    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]) {
        let start = bytes_from(tensor, first, bytes.len());
        // SAFETY: as above; who writes from several threads writes each byte from one of them, and nobody reads meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        slice::<f64>(&numbers.contiguous(), Kind::Double).to_vec()
    }

    fn address(&self, tensor: &Tensor, element: usize) -> Option<Address> {
        check(tensor, Kind::Float);
        let first = NonNull::new(bytes_from(tensor, size_of::<f32>() * element, size_of::<f32>()).cast())?;
        Some(Address { first, device: None })
    }

    fn with_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        work(floats_mut(tensor));
    }

    fn seed(&self, seed: u64) {
        tch::manual_seed(seed as i64);
    }

    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor {
        let mut factors = Tensor::empty(shape, (Kind::Float, Device::Cpu));
        dropout::fill(floats_mut(&mut factors), shape, draws, slice::<i64>(draws.samples, Kind::Int64));
        factors
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        let sum = chunks::sum_of_squares_of(slice::<f32>(values, Kind::Float), threads());
        Tensor::from(sum.sqrt())
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        Tensor::from(chunks::digest(slice::<f32>(values, Kind::Float), threads()) as i64)
    }

    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor> {
        let norm = slice::<f64>(update.norm, Kind::Double)[0];
        if !norm.is_finite() {
            return None;
        }
        let slices = Slices {
            weights: floats_mut(buffers.weights),
            gradients: floats_mut(buffers.gradients),
            first: floats_mut(buffers.first),
            second: floats_mut(buffers.second),
        };
        let rates = change(slices, update, norm, threads());
        if let Some(low) = &mut buffers.low {
            low.copy_(buffers.weights);
        }
        rates.map(|rates| Tensor::from_slice(&rates))
    }
}

/// The update itself; the number of threads changes no bit of it. What LAMB's directions were multiplied with.
fn change(slices: Slices<'_>, update: &Update<'_>, norm: f64, threads: usize) -> Option<Vec<f32>> {
    let clip = update.clip_norm > 0.0 && norm > update.clip_norm;
    let scale = if clip { (update.clip_norm / norm) as f32 } else { 1.0 };
    let mut chunks = chunks::cut(&update.parameters, slices);
    match update.kind {
        OptimizerKind::Lamb => Some(lamb::update(update.trust_ratio, &mut chunks, scale, threads)),
        OptimizerKind::Adamw | OptimizerKind::AdamBert => {
            adamw::update(&mut chunks, scale, threads);
            None
        }
    }
}

impl Rule {
    /// Moves the moments of one element and returns `m_hat / (sqrt(v_hat) + eps)`.
    #[inline]
    fn direction(&self, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        *first = self.beta1 * *first + self.share1 * gradient;
        *second = self.beta2 * *second + self.share2 * gradient * gradient;
        *first * self.correction1 / ((*second * self.correction2).sqrt() + self.eps)
    }
}

fn threads() -> usize {
    tch::get_num_threads().max(1) as usize
}

/// The elements of a contiguous tensor of `T` in main memory, without a copy.
fn slice<T>(tensor: &Tensor, kind: Kind) -> &[T] {
    check(tensor, kind);
    // SAFETY: checked to be contiguous in main memory and of the type whose size T has at all callers; the storage lives as
    // long as the handle that is borrowed.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<T>(), tensor.numel()) }
}

/// The elements of a contiguous f32 tensor, to be written. Taking the tensor mutably keeps this the only slice over it made
/// through this handle.
fn floats_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor, Kind::Float);
    // SAFETY: as above; views of the storage exist (the parameters), but no tensor code runs while the slice lives, because
    // one thread runs all of it.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel()) }
}

/// Where byte `first` of a tensor lies, of which at least `count` follow.
fn bytes_from(tensor: &Tensor, first: usize, count: usize) -> *mut u8 {
    check(tensor, tensor.kind());
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    assert!(first.checked_add(count).is_some_and(|end| end <= bytes), "bytes {first} to {count} more of {bytes}");
    // SAFETY: within the storage, as just checked.
    unsafe { tensor.data_ptr().cast::<u8>().add(first) }
}

fn check(tensor: &Tensor, kind: Kind) {
    let plain = tensor.is_contiguous() && tensor.kind() == kind && tensor.device() == Device::Cpu;
    assert!(plain, "expected a contiguous tensor of {kind:?} in main memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::{Draw, SHAPES, update};
    use lambert_config::run::Optimizer as Settings;

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        for kind in [OptimizerKind::Lamb, OptimizerKind::Adamw, OptimizerKind::AdamBert] {
            let settings = Settings { kind, ..Settings::default() };
            let after = |threads: usize| {
                let mut draw = Draw::new(6);
                let (mut weights, mut gradients) = (draw.weights(&SHAPES), draw.values(&SHAPES, 1.0));
                let (mut first, mut second) = (draw.values(&SHAPES, 0.1), vec![0.5; weights.len()]);
                let norm = chunks::sum_of_squares_of(&gradients, threads).sqrt();
                let slices =
                    Slices { weights: &mut weights, gradients: &mut gradients, first: &mut first, second: &mut second };
                change(slices, &update(&SHAPES, &settings, 1e-2, 2, &Tensor::from(norm)), norm, threads);
                (weights, first, second, norm)
            };
            let alone = after(1);
            [2, 3, 7, 64].iter().for_each(|&threads| assert_eq!(after(threads), alone));
        }
    }

    #[test]
    fn bytes_go_to_their_place_and_no_further() {
        let tensor = Host.zeros(&[4], Kind::Float);
        Host.write(&tensor, 5, &2.0_f32.to_le_bytes()[1..]);
        let mut bytes = [9; 8];
        Host.read(&tensor, 4, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 64, 0, 0, 0, 0]);
        assert!(crate::torch::guard(|| Host.write(&tensor, 14, &[0; 3])).is_err());
    }
}
