//! Tests of a training step on the meta device of libtorch, whose tensors have shapes but no data. A hidden read of
//! a value is an error, and so is a shape that depends on data. The tests run with the reference operations and with the
//! CUDA operations. For CUDA, a check of the arguments replaces each hand-written kernel.
//!
//! - `steps`: reads, copies and number of operations of a step
//! - `memory`: peak of the tensors of a step, compared with the estimate

mod memory;
mod steps;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::cuda::launch::{KernelArguments, KernelDevice, THREADS};
use super::*;
use crate::torch;

unsafe extern "C" {
    fn lambert_to_meta(host: *const torch_sys::C_tensor) -> *mut torch_sys::C_tensor;
}

/// Runs operations on the meta device and checks kernel launches.
#[derive(Default)]
struct MetaDevice {
    /// Number of [`Kernels::fetch`] calls.
    fetched: AtomicUsize,
    /// Number of launches of each kernel.
    launches: Mutex<BTreeMap<String, usize>>,
}

impl MetaDevice {
    /// Number of launches of a kernel so far.
    fn launched(&self, kernel: &str) -> usize {
        self.launches.lock().unwrap().get(kernel).copied().unwrap_or(0)
    }
}

fn to_meta(host: &Tensor) -> Tensor {
    // SAFETY: the function takes a live at::Tensor and returns a new tensor that nothing else owns.
    unsafe {
        let meta = lambert_to_meta(host.as_ptr());
        assert!(!meta.is_null());
        Tensor::from_ptr(meta)
    }
}

impl KernelDevice for MetaDevice {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        // Expands one element on the device, so that only that element is copied.
        to_meta(&Host.zeros(&[], kind)).expand(shape, false).zeros_like()
    }

    fn to_device(&self, host: Tensor) -> Tensor {
        to_meta(&host)
    }

    fn start_snapshot(&self, _: Vec<TensorCopy>, _: HostBuffer) -> Box<dyn PendingSnapshot> {
        unreachable!("no snapshot in a step")
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        assert_eq!(numbers.kind(), Kind::Double);
        vec![1.0; numbers.size()[0] as usize]
    }

    fn seed(&self, _: u64) {}

    fn has_unpadded_attention(&self) -> bool {
        true
    }

    /// Checks the sizes of the tensors that a kernel reads and writes, in bytes.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut KernelArguments) -> Result<(), String> {
        *self.launches.lock().unwrap().entry(kernel.to_owned()).or_default() += 1;
        let sizes = |indices: &[usize]| indices.iter().map(|index| arguments.size(*index)).collect::<Vec<_>>();
        let number = |index: usize| arguments.number(index);
        let fits = match kernel {
            "dropout_f32" | "dropout_bf16" => {
                let element = if kernel == "dropout_f32" { 4 } else { 2 };
                let (lines, heads, width, length) = (number(8), number(9), number(10), number(11));
                let (added, places) = (arguments.size(2), arguments.size(4));
                let all = element * lines * length;
                let samples = if places > 0 { lines } else { lines / heads / width };
                sizes(&[0, 1, 3]) == [all, all, 8 * samples]
                    && (added == 0 || added == all)
                    && (places == 0 || places == 8 * lines)
                    && blocks == lines.div_ceil(THREADS / 32)
            }
            "residual_norm_f32" | "residual_norm_bf16" => {
                let (lines, width) = (number(13), number(15));
                let all = if kernel == "residual_norm_f32" { 4 } else { 2 } * lines * width;
                sizes(&[0, 1, 2, 3, 4, 5, 6]) == [all, all, 8 * lines, all, all, 4 * width, 4 * width]
                    && blocks == lines.div_ceil(THREADS / 32)
            }
            "residual_norm_backward_f32" | "residual_norm_backward_bf16" => {
                let (lines, width) = (number(12), number(14));
                let all = if kernel == "residual_norm_backward_f32" { 4 } else { 2 } * lines * width;
                sizes(&[1, 2, 3, 4, 5, 6]) == [all, 12 * blocks * width, all, all, 8 * lines, 4 * width]
                    && [0, all].contains(&arguments.size(0))
                    && blocks == number(15)
            }
            "rotate_f32" | "rotate_bf16" => {
                let (tokens, angles) = (number(4), 16 * number(5) * number(7));
                let all = if kernel == "rotate_f32" { 4 } else { 2 } * tokens * 24 * number(6) * number(7);
                sizes(&[0, 1, 2, 3]) == [all, all, angles, angles] && blocks == tokens.div_ceil(8)
            }
            "relative_softmax_f32" | "relative_softmax_bf16" => {
                let (batch, heads, length) = (number(11), number(12), number(13));
                let row = if kernel == "relative_softmax_f32" { 4 } else { 2 } * batch * heads * length;
                let [all, distances] = [row * length, row * (2 * length - 1)];
                sizes(&[1, 2, 3, 4]) == [all, all, distances, distances]
                    && [0, all].contains(&arguments.size(0))
                    && [0, batch * length].contains(&arguments.size(5))
                    && blocks == (batch * heads * length).div_ceil(THREADS / 32)
            }
            "relative_softmax_backward_f32" | "relative_softmax_backward_bf16" => {
                let (batch, heads, length) = (number(10), number(11), number(12));
                let row = if kernel == "relative_softmax_backward_f32" { 4 } else { 2 } * batch * heads * length;
                let [all, distances] = [row * length, row * (2 * length - 1)];
                sizes(&[0, 1, 2, 3, 4]) == [all, distances, distances, all, all]
                    && blocks == (batch * heads * length).div_ceil(THREADS / 32)
            }
            "gate_f32" | "gate_bf16" => {
                let half = if kernel == "gate_f32" { 16 } else { 8 } * number(2);
                sizes(&[0, 1]) == [half, 2 * half] && blocks == number(2).div_ceil(THREADS)
            }
            "gate_backward_f32" | "gate_backward_bf16" => {
                let half = if kernel == "gate_backward_f32" { 16 } else { 8 } * number(3);
                sizes(&[0, 1, 2]) == [2 * half, half, 2 * half] && blocks == number(3).div_ceil(THREADS)
            }
            "sample_tokens_f32" | "sample_tokens_bf16" => {
                let element = if kernel == "sample_tokens_f32" { 4 } else { 2 };
                let rows = 8 * blocks;
                sizes(&[0, 1, 2, 3]) == [rows, element * blocks * number(6), rows, rows] && number(5) <= number(6)
            }
            "soft_targets_f32" | "soft_targets_bf16" => {
                let element = if kernel == "soft_targets_f32" { 4 } else { 2 };
                let [student, teacher] = [6, 7].map(|index| element * blocks * number(index));
                sizes(&[0, 1, 2, 3]) == [student, 4 * blocks, student, teacher]
                    && [0, 4 * blocks].contains(&arguments.size(4))
                    && number(5) <= number(6).min(number(7))
            }
            "cross_entropy_f32" | "cross_entropy_bf16" => {
                let element = if kernel == "cross_entropy_f32" { 4 } else { 2 };
                let (all, rows) = (element * blocks * number(7), 8 * blocks);
                sizes(&[0, 1, 2, 3, 4]) == [4 * blocks, rows, rows, all, rows]
                    && [0, 4 * blocks].contains(&arguments.size(5))
                    && number(6) <= number(7)
            }
            "cross_entropy_backward_f32" | "cross_entropy_backward_bf16" => {
                let element = if kernel == "cross_entropy_backward_f32" { 4 } else { 2 };
                let (all, rows) = (element * blocks * number(7), 8 * blocks);
                sizes(&[0, 1, 2, 3, 5]) == [all, 4, all, rows, rows]
                    && [0, 4 * blocks].contains(&arguments.size(4))
                    && number(6) <= number(7)
            }
            "add_column_sums" => {
                let width = number(5);
                arguments.size(3) == 12 * number(4) * width
                    && [0, 1, 2].iter().all(|index| [0, 4 * width].contains(&arguments.size(*index)))
                    && blocks == (3 * width).div_ceil(32)
            }
            "sum_of_squares" => {
                sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3))
            }
            "norm_from_sums" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "digest_chunks" => sizes(&[0, 1]) == [8 * blocks, 4 * number(2)] && blocks == number(2).div_ceil(number(3)),
            "digest_sum" => sizes(&[0, 1]) == [8, 8 * number(2)] && blocks == 1,
            "scaled_directions" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7, 8]) == [16 * blocks, 8, all, all, 16 * blocks] && arguments.size(5) >= all
            }
            "scaled_step_sizes" => sizes(&[0, 1, 2]) == [4 * blocks, 40 * blocks, 4 * blocks],
            "scaled_apply" => sizes(&[0, 2]) == [16 * blocks, 8] && arguments.size(4) >= arguments.size(3),
            "adamw" => {
                let all = arguments.size(4);
                sizes(&[0, 2, 6, 7]) == [16 * blocks, 8, all, all] && arguments.size(5) >= all
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("wrong argument sizes: {arguments:?}")) }
    }
}

/// Reference operations on the meta device.
struct MetaReference(Arc<MetaDevice>);

impl Kernels for MetaReference {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        self.0.zeros(shape, kind)
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        self.0.to_device(Host.upload(values))
    }

    fn read(&self, _: &Tensor, _: usize, _: &mut [u8]) {
        unreachable!("a step reads only with fetch")
    }

    fn write(&self, _: &Tensor, _: usize, _: &[u8]) {}

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.0.fetch(numbers)
    }

    fn with_host_floats(&self, _: &mut Tensor, _: &mut dyn FnMut(&mut [f32])) {
        unreachable!("no all-reduce in this test")
    }

    fn seed(&self, _: u64) {}

    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
        reference::dropout_factors(params, shape)
    }

    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
        reference::sample_tokens(logits, draws)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        reference::norm(values)
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        reference::digest(values)
    }

    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
        reference::apply_update(buffers, update)
    }
}

/// CUDA kernels of the meta device.
pub fn kernels() -> Arc<dyn Kernels> {
    Arc::new(Cuda::new(Arc::new(MetaDevice::default())))
}

#[test]
fn kernel_with_wrong_sizes_is_rejected() {
    let device = MetaDevice::default();
    let tensor = |count: i64| device.zeros(&[count], Kind::Float);
    let arguments = |count| KernelArguments::new().tensor(&device.zeros(&[1], Kind::Double)).tensor(&tensor(count));
    assert!(device.launch("sum_of_squares", 1, &mut arguments(7).u64(7).u32(16)).is_ok());
    assert!(device.launch("sum_of_squares", 1, &mut arguments(6).u64(7).u32(16)).is_err());
}

#[test]
fn implicit_read_is_an_error() {
    let numbers = MetaDevice::default().zeros(&[3], Kind::Float);
    assert!(torch::guard(|| numbers.sum(Kind::Float).double_value(&[])).is_err());
    let mixed = torch::guard(|| &numbers + &Host.upload(Values::F32(&[1.0, 2.0, 3.0])));
    assert!(mixed.is_err(), "mixed a host tensor with device tensors");
}
