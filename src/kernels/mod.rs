//! What the engine computes by loops of its own instead of libtorch's operations, and how numbers get to a device and back.
//! One trait; another kind of device is another implementor.
//!
//! - [`Host`]: main memory; the only file that takes slices of tensors
//! - [`Cuda`]: GPUs; kernels of our own (cuda/kernels.cu) and libtorch's operations
//! - [`copies`]: copies out of a device's memory beside its computing
//! - `Reference`: plain libtorch operations, slow, on any device: what the others are tested against

pub mod copies;
pub mod cuda;
mod host;
#[cfg(test)]
mod meta;
#[cfg(test)]
mod reference;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;
use std::ptr::NonNull;

use lambert_config::run::OptimizerKind;
use lambert_dataset::random::Key;
use tch::{Kind, Tensor};

pub use copies::{Copies, Copy, Memory};
pub use cuda::Cuda;
pub use host::Host;
#[cfg(test)]
pub use reference::Reference;

/// A device's kernels. Results may be awaited by [`Kernels::fetch`], [`Kernels::read`] and [`Kernels::wait`] only; everything
/// else may return before it is done, in the order of the calls unless it says otherwise.
pub trait Kernels: Send + Sync {
    /// Zeros of `kind` on the device.
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor;

    /// A copy of `values` on the device, \[n\].
    fn upload(&self, values: Values<'_>) -> Tensor;

    /// The same beside what the device was given before, and not to be used before the next call of
    /// [`Kernels::order_sent`].
    fn send(&self, values: Values<'_>) -> Tensor {
        self.upload(values)
    }

    /// Lets what comes after this wait for what was sent.
    fn order_sent(&self) {}

    /// Copies bytes of a contiguous tensor, from byte `first` on, into `into`.
    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]);

    /// Copies `bytes` into a contiguous tensor, from byte `first` on. Several threads may write at the same time, each other
    /// bytes.
    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]);

    /// Memory of these bytes, to which the device copies as quickly as it can.
    fn memory(&self, bytes: Vec<u8>) -> Memory {
        Memory::new(bytes)
    }

    /// Begins to copy bytes of tensors as they are when what was called before has been done. What comes after this must not
    /// change them before a call of [`Kernels::order_copies`].
    fn begin_copies(&self, copies: Vec<Copy>, into: Memory) -> Box<dyn Copies> {
        Box::new(copies::Done::make(self, &copies, into))
    }

    /// Lets what comes after this wait for the copies that have begun.
    fn order_copies(&self) {}

    /// The values of `numbers`, f64 \[n\], once they are computed: the one read of a step.
    fn fetch(&self, numbers: &Tensor) -> Vec<f64>;

    /// Returns when everything that was called before is computed.
    fn wait(&self) {
        self.fetch(&self.zeros(&[1], Kind::Double));
    }

    /// Where an element of a contiguous f32 tensor lies, and those behind it: what sums over ranks read and write while other
    /// operations run. `None` where nobody else may.
    fn address(&self, _tensor: &Tensor, _element: usize) -> Option<Address> {
        None
    }

    /// Gives `work` the elements of a contiguous f32 tensor in main memory, as sums over ranks need them.
    fn with_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32]));

    /// Whether attention is faster fused, unless somebody says otherwise.
    fn prefers_fused(&self) -> bool {
        false
    }

    /// The most bytes of a device's memory of its own that this process has had at a time.
    fn peak_memory(&self) -> Option<u64> {
        None
    }

    /// Seeds libtorch's own generator for the device, for what is enqueued next.
    fn seed(&self, seed: u64);

    /// Factors for dropout, f32 of `shape` \[rows, (heads,) width, length\]: 0 for what is dropped, `draws.scale` for the rest.
    /// Every factor is a pure function of `draws`, its row's sample, its head and its position: the same on every device.
    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor;

    /// Dropout of `x`, of the same shape: times its factors, and plus `added` where there is something, in the kind of number
    /// of `x`. There is a way back through it.
    fn dropout(&self, x: &Tensor, added: Option<&Tensor>, draws: &Draws<'_>) -> Tensor {
        // The factors are f32: 1 / 0.9 has no equal in bf16.
        let dropped = (x * self.dropout_factors(draws, &x.size())).to_kind(x.kind());
        added.map_or_else(|| dropped.shallow_clone(), |added| &dropped + added)
    }

    /// The L2 norm of f32 `values`, f64 \[\]; summed in a fixed order.
    fn norm(&self, values: &Tensor) -> Tensor;

    /// A digest of the bits of f32 `values`, i64 \[\], the same on every device: the sum, modulo 2^64, of
    /// `mix(word + (i + 1) STEP)` over the words, two elements each (the second in the upper half; 0 behind the last one).
    /// Where one word changes, whatever its bits, the digest does.
    fn digest(&self, values: &Tensor) -> Tensor;

    /// One update of the weights and moments; nothing changes where `update.norm` is not finite. The gradients are scratch
    /// afterwards. Of LAMB, returns what each parameter's direction is multiplied with, f32 \[parameters\]: its learning rate
    /// times its trust ratio.
    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor>;
}

/// A place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The first value there.
    pub first: NonNull<f32>,
    /// The device whose memory it is, as its driver counts; none: main memory.
    pub device: Option<usize>,
}

/// Numbers in main memory.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// A micro-batch.
    I32(&'a [i32]),
    /// Factors.
    F32(&'a [f32]),
    /// Tables of a kernel.
    U8(&'a [u8]),
}

/// What dropout is drawn from at one place of the model.
#[derive(Debug, Clone, Copy)]
pub struct Draws<'a> {
    /// Of the run's seed, the step and the place in the model.
    pub key: Key,
    /// The number of each row's sample in the global batch, i64 \[rows\], on the device.
    pub samples: &'a Tensor,
    /// A value is dropped if its 16 random bits, as a number, are below this.
    pub dropped: u16,
    /// What the rest is multiplied with, so that the mean stays.
    pub scale: f32,
}

/// The flat buffers of the training state, f32 \[elements\]; the gradients may be longer.
pub struct Buffers<'a> {
    /// Weights.
    pub weights: &'a mut Tensor,
    /// Gradients.
    pub gradients: &'a mut Tensor,
    /// First moments.
    pub first: &'a mut Tensor,
    /// Second moments.
    pub second: &'a mut Tensor,
    /// The weights once more, in bf16, which the next forward pass reads.
    pub low: Option<&'a mut Tensor>,
}

/// One update of all parameters that are not frozen.
#[derive(Debug)]
pub struct Update<'a> {
    /// Which rule.
    pub kind: OptimizerKind,
    /// The gradient is scaled down to this norm when above it; 0: never.
    pub clip_norm: f64,
    /// The bounds of LAMB's trust ratio.
    pub trust_ratio: Option<[f64; 2]>,
    /// The L2 norm of all gradients, f64 \[\], on the device.
    pub norm: &'a Tensor,
    /// The parameters, in the order of the buffers.
    pub parameters: Vec<(Range<usize>, Rule)>,
}

/// What one update of one element needs, the same for all of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Decay of the first moment.
    pub beta1: f32,
    /// 1 - beta1, and 1 - beta2 below: subtracted in f64, because f32 would lose the fifth digit.
    pub share1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// 1 - beta2.
    pub share2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// 1 / (1 - beta1^t).
    pub correction1: f32,
    /// 1 / (1 - beta2^t).
    pub correction2: f32,
    /// Learning rate.
    pub learning_rate: f32,
    /// Weight decay; 0 for biases and layer normalisations.
    pub weight_decay: f32,
    /// Whether LAMB scales its update by the trust ratio.
    pub trusted: bool,
}
