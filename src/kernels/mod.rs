//! Device kernels: hand-written loops that replace libtorch operations, and transfers between host and device. Each
//! kind of device implements the trait [`Kernels`].
//!
//! - [`Host`]: kernels of the CPU
//! - [`Cuda`]: kernels of GPUs, hand-written (cuda/kernels.cu) or libtorch operations
//! - [`snapshot`]: asynchronous device-to-host copies
//! - `cross_entropy`: targets and result of the cross-entropy over the vocabulary
//! - `soft_targets`: loss of the soft targets of a teacher, with libtorch operations
//! - `Reference`: plain libtorch operations on any device, the slow baseline of the tests

mod cross_entropy;
pub mod cuda;
mod host;
#[cfg(test)]
pub(crate) mod meta;
#[cfg(test)]
mod reference;
pub mod snapshot;
mod soft_targets;
#[cfg(test)]
pub(crate) mod tests;
mod time;

use std::ops::Range;
use std::ptr::NonNull;

use lambert_config::run::{Activation, OptimizerKind};
use lambert_dataset::random::Key;
use tch::{Kind, Tensor};

pub use cross_entropy::{CrossEntropy, TokenTargets};
pub use cuda::Cuda;
pub use host::Host;
#[cfg(test)]
pub use reference::Reference;
pub use snapshot::{HostBuffer, PendingSnapshot, TensorCopy};
pub use soft_targets::{SoftTargetGradient, SoftTargetParams};
pub use time::TimeMark;

/// Kernels of a device. Calls are enqueued in order and may return before the work completes. Only [`Kernels::fetch`],
/// [`Kernels::read`], [`Kernels::with_host_floats`] and [`Kernels::wait`] wait for results.
pub trait Kernels: Send + Sync {
    /// Allocates a tensor of zeros on the device.
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor;

    /// Copies `values` to a new device tensor of shape \[n\].
    fn upload(&self, values: Values<'_>) -> Tensor;

    /// Uploads `values` on a separate stream, concurrently with enqueued work. The tensor is valid after the next
    /// [`Kernels::wait_uploads`].
    fn upload_async(&self, values: Values<'_>) -> Tensor {
        self.upload(values)
    }

    /// Makes all later calls wait for pending uploads.
    fn wait_uploads(&self) {}

    /// Copies `into.len()` bytes of a contiguous tensor, starting at byte `first`, to `into`.
    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]);

    /// Copies `bytes` to a contiguous tensor, starting at byte `first`. Threads may write disjoint ranges
    /// concurrently.
    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]);

    /// Wraps `bytes` as a buffer for device-to-host copies. The buffer is pinned if the device supports pinned memory.
    fn host_buffer(&self, bytes: Vec<u8>) -> HostBuffer {
        HostBuffer::new(bytes)
    }

    /// Enqueues copies of tensors to host memory. The copies start when all earlier calls are complete. Before a call
    /// that modifies these tensors, call [`Kernels::wait_snapshots`].
    fn start_snapshot(&self, copies: Vec<TensorCopy>, into: HostBuffer) -> Box<dyn PendingSnapshot> {
        Box::new(snapshot::CompletedSnapshot::copy(self, &copies, into))
    }

    /// Makes all later calls wait for started snapshots.
    fn wait_snapshots(&self) {}

    /// Returns the values of `numbers`, f64 \[n\], once they are computed. A training step calls this function once.
    fn fetch(&self, numbers: &Tensor) -> Vec<f64>;

    /// Blocks until all enqueued work is complete.
    fn wait(&self) {
        self.fetch(&self.zeros(&[1], Kind::Double));
    }

    /// Marks the time at which the device completes the work enqueued so far. Does not wait.
    fn mark_time(&self) -> TimeMark {
        TimeMark::now()
    }

    /// Returns the address of an element of a contiguous f32 tensor, for an all-reduce that runs concurrently with
    /// other operations. `None` if the device does not support concurrent access.
    fn address(&self, _tensor: &Tensor, _element: usize) -> Option<Address> {
        None
    }

    /// Runs `work` on the elements of a contiguous f32 tensor in host memory and writes the result back.
    fn with_host_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32]));

    /// True if fused attention is the default on this device.
    fn prefers_fused_attention(&self) -> bool {
        false
    }

    /// True if the device has fast attention for samples of different lengths without padding (bf16 only).
    fn has_unpadded_attention(&self) -> bool {
        false
    }

    /// Peak device memory of this process in bytes, if the device has its own memory.
    fn peak_memory(&self) -> Option<u64> {
        None
    }

    /// Makes the memory that is now in use the peak of a device with its own memory.
    fn reset_peak_memory(&self) {}

    /// Seeds the libtorch random generator of the device, for the operations that are enqueued next.
    fn seed(&self, seed: u64);

    /// Returns dropout factors, f32 of shape `shape` \[batch, (heads,) sequence, length\]. A factor is 0 for a dropped
    /// element and `params.scale` for a kept element. Each factor is a pure function of `params`, sample, head and
    /// position, and has the same bits on every device.
    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor;

    /// Applies dropout to `x` and adds the residual `added`, if given. The result is
    /// differentiable and has the shape and dtype of `x`.
    fn dropout(&self, x: &Tensor, added: Option<&Tensor>, params: &DropoutParams<'_>) -> Tensor {
        // The factors stay f32, because bf16 cannot represent a scale such as 1 / 0.9.
        let dropped = (x * self.dropout_factors(params, &x.size())).to_kind(x.kind());
        added.map_or_else(|| dropped.shallow_clone(), |added| &dropped + added)
    }

    /// Draws a token for each row of `logits` \[rows, vocabulary\] with the probabilities of their softmax, i64 \[rows\]. The
    /// logits may be the first columns of wider rows. The token is the argmax of the sums of logits and Gumbel noise. The noise is a pure function of `draws`, row and token, from
    /// 32 random bits each. The argmax may differ between devices where two sums are equal up to rounding.
    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor;

    /// Computes the loss of the soft targets of a teacher: the sum over the rows of weight x T² x KL(teacher || student) at
    /// temperature T, with its gradient. The logits are those of student and teacher, \[n, width\], without a graph.
    fn soft_targets(&self, logits: [&Tensor; 2], params: &SoftTargetParams<'_>) -> SoftTargetGradient {
        soft_targets::with_operations(logits, params)
    }

    /// True if the device has [`Kernels::cross_entropy`].
    fn has_cross_entropy(&self) -> bool {
        false
    }

    /// Computes the summed cross-entropy of `logits` \[n, width\] and the number of correct predictions, in one kernel. A second
    /// kernel computes the gradient, which has the dtype of the logits and is 0 for padding. The computation uses f32.
    fn cross_entropy(&self, _logits: &Tensor, _targets: &TokenTargets<'_>) -> CrossEntropy {
        unreachable!("has_cross_entropy returns false")
    }

    /// True if [`Kernels::residual_norm`] supports rows of `width` elements.
    fn has_residual_norm(&self, _width: i64) -> bool {
        false
    }

    /// Layer normalization of dropout(`x`) + `residual`, \[batch, sequence, width\], in one kernel. The result is
    /// differentiable. The gradients of the parameters are added to the flat gradient buffer.
    fn residual_norm(
        &self,
        _x: &Tensor,
        _residual: &Tensor,
        _norm: &NormParams<'_>,
        _dropout: Option<&DropoutParams<'_>>,
    ) -> Tensor {
        unreachable!("has_residual_norm returns false")
    }

    /// True if [`Kernels::rotate`] supports heads of `head_size` elements.
    fn has_rotation(&self, _head_size: i64) -> bool {
        false
    }

    /// Rotates queries and keys by the angles of their positions, in one kernel. `query_key_value` is \[batch, sequence, 3,
    /// heads, head size\]. The result has its shape and dtype, and is differentiable. Values are copied.
    fn rotate(&self, _query_key_value: &Tensor, _angles: Angles<'_>) -> Tensor {
        unreachable!("has_rotation returns false")
    }

    /// True if [`Kernels::relative_softmax`] supports samples of `length` tokens.
    fn has_relative_softmax(&self, _length: i64) -> bool {
        false
    }

    /// Attention weights with relative positions, after dropout, \[batch, heads, sequence, sequence\]: the softmax of the sum of
    /// `scores`, in one kernel. `mask` \[batch, 1, 1, sequence\] is false for keys without attention. The result is
    /// differentiable.
    fn relative_softmax(
        &self,
        _scores: &RelativeScores<'_>,
        _mask: Option<&Tensor>,
        _dropout: Option<&DropoutParams<'_>>,
    ) -> Tensor {
        unreachable!("has_relative_softmax returns false")
    }

    /// True if [`Kernels::gate`] supports halves of `width` elements.
    fn has_gate(&self, _width: i64) -> bool {
        false
    }

    /// Returns `activation` of the first half of the last dimension, times the second half, in one kernel. `x` is
    /// \[..., 2 x width\], and the result is \[..., width\]. It has the dtype of `x` and is differentiable.
    fn gate(&self, _x: &Tensor, _activation: Activation) -> Tensor {
        unreachable!("has_gate returns false")
    }

    /// L2 norm of f32 `values`, f64 \[\], summed in a fixed order.
    fn norm(&self, values: &Tensor) -> Tensor;

    /// Digest of the bits of f32 `values`, i64 \[\], equal on all devices. The digest is the sum modulo 2^64 of
    /// `mix(word[i] + (i + 1) * STEP)` over all words. Word `i` has element `2 * i` in its low half and element
    /// `2 * i + 1`, or 0 past the end, in its high half. Any change to a single word changes the digest.
    fn digest(&self, values: &Tensor) -> Tensor;

    /// Updates weights and moments in place, unless `update.norm` is not finite. Overwrites the gradients. With Muon,
    /// `update` has only the parameters that AdamW updates. For LAMB
    /// and StableAdamW, returns the step size of each parameter, f32 \[parameters\]: the learning rate times its scale.
    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor>;
}

/// Address of f32 values in host or device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// First value.
    pub pointer: NonNull<f32>,
    /// CUDA device index; `None` for host memory.
    pub device: Option<usize>,
}

/// Values in host memory.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Integers of a micro-batch.
    I32(&'a [i32]),
    /// Scale factors.
    F32(&'a [f32]),
    /// Kernel tables, as raw bytes.
    U8(&'a [u8]),
}

/// Parameters of one dropout call.
#[derive(Debug, Clone, Copy)]
pub struct DropoutParams<'a> {
    /// Key derived from the seed, the step and the dropout site.
    pub key: Key,
    /// For each row, the index of its sample in the global batch, i64 \[batch\], on the device.
    pub samples: &'a Tensor,
    /// Position of each token in its sample, i64 \[tokens\], on the device. If given, dropout applies to the tokens of an
    /// unpadded micro-batch, \[1, tokens, length\], and `samples` has an entry for each token. `None`: the position is the
    /// index in the row.
    pub positions: Option<&'a Tensor>,
    /// An element is dropped if its 16 random bits are below this number.
    pub threshold: u16,
    /// Scale of the kept elements, 1 / (1 - dropout probability).
    pub scale: f32,
}

/// Keys of the draws of [`Kernels::sample_tokens`].
#[derive(Debug, Clone, Copy)]
pub struct TokenDraws<'a> {
    /// Key derived from the seed and the step.
    pub key: Key,
    /// For each row of logits, the index of its sample in the global batch, i64 \[rows\], on the device.
    pub samples: &'a Tensor,
    /// For each row of logits, its position in the sample, i64 \[rows\], on the device.
    pub positions: &'a Tensor,
}

impl TokenDraws<'_> {
    /// Maps 32 random bits to a number above 0 and at most 1. Numbers near 0 become large noise. There, f32 has the smallest
    /// steps.
    fn uniform(bits: u32) -> f32 {
        const STEP: f32 = 1.0 / (1_u64 << 32) as f32;
        (bits as f32 + 0.5) * STEP
    }
}

/// Parameters of a layer normalization, f32 \[width\], with gradients from [`set_gradient`](crate::torch::set_gradient).
#[derive(Debug, Clone, Copy)]
pub struct NormParams<'a> {
    pub weight: &'a Tensor,
    pub bias: &'a Tensor,
    /// Added to the variance.
    pub eps: f64,
    /// Bias of the linear layer whose output is normalized, f32 \[width\]. Its gradient is the sum over all rows of the
    /// gradient of that output.
    pub linear_bias: Option<&'a Tensor>,
}

/// Cosines and sines of the angles of rotary positions, contiguous, f32 \[sequence, ..., head size / 2\].
#[derive(Debug, Clone, Copy)]
pub struct Angles<'a> {
    pub cosines: &'a Tensor,
    pub sines: &'a Tensor,
}

/// Attention scores with relative positions.
#[derive(Debug, Clone, Copy)]
pub struct RelativeScores<'a> {
    /// Scores of queries with keys, \[batch, heads, sequence, sequence\].
    pub contents: &'a Tensor,
    /// Scores of queries with the positions of keys, \[heads, batch x sequence, distances\]. Column `d` is for the key at the
    /// position of the query plus `d - (sequence - 1)`.
    pub queries: &'a Tensor,
    /// Scores of keys with the positions of queries. Column `d` is for the query at the position of the key plus
    /// `d - (sequence - 1)`.
    pub keys: &'a Tensor,
}

/// Flat buffers of the training state, f32 \[elements\]. The gradient buffer may have more elements at its end.
pub struct StateBuffers<'a> {
    pub weights: &'a mut Tensor,
    pub gradients: &'a mut Tensor,
    pub first_moments: &'a mut Tensor,
    pub second_moments: &'a mut Tensor,
    /// bf16 copy of the weights, read by the next forward pass.
    pub bf16_weights: Option<&'a mut Tensor>,
}

/// An optimizer update of all parameters that are not frozen.
#[derive(Debug)]
pub struct OptimizerUpdate<'a> {
    /// Optimizer.
    pub kind: OptimizerKind,
    /// Maximum gradient norm. Larger gradients are scaled down to this norm. 0 disables clipping.
    pub clip_norm: f64,
    /// Bounds of LAMB's trust ratio.
    pub trust_ratio: Option<[f64; 2]>,
    /// L2 norm of all gradients, f64 \[\], on the device.
    pub norm: &'a Tensor,
    /// Ranges and constants of the parameters, in buffer order.
    pub parameters: Vec<(Range<usize>, ParamUpdate)>,
}

/// Constants of the update of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamUpdate {
    /// Decay rate of the first moment.
    pub beta1: f32,
    /// 1 - beta1, computed in f64. In f32, the result would be wrong in the fifth digit.
    pub one_minus_beta1: f32,
    /// Decay rate of the second moment.
    pub beta2: f32,
    /// 1 - beta2, computed in f64.
    pub one_minus_beta2: f32,
    /// Added to the square root of the second moment.
    pub eps: f32,
    /// 1 / (1 - beta1^t); 1 without bias correction.
    pub inv_bias_correction1: f32,
    /// 1 / (1 - beta2^t); 1 without bias correction.
    pub inv_bias_correction2: f32,
    pub learning_rate: f32,
    /// Weight decay; 0 for biases and layer norms.
    pub weight_decay: f32,
    /// Factor of the learning rate.
    pub step_scale: StepScale,
}

/// Factor of the learning rate of a parameter. Kernels read its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StepScale {
    /// 1.
    #[default]
    Fixed = 0,
    /// LAMB's trust ratio: the norm of the weights divided by the norm of the update.
    TrustRatio = 1,
    /// StableAdamW: `1 / max(1, rms(gradient / max(sqrt(v_hat), eps)))` over the elements of the parameter.
    Stable = 2,
}
