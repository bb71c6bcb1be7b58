//! CUDA kernels. Hand-written kernels compute keyed dropout, whose masks are drawn from a key and a counter. They also
//! compute the operations for which libtorch is slower. libtorch computes all other operations.
//!
//! - files with the suffix .cu: the kernels, compiled at run time for the GPU ([`crate::gpu`])
//! - [`KernelDevice`]: device that runs the kernels, either a GPU or, in tests, the CPU (`Emulator`)

mod chunks;
mod cross_entropy;
#[cfg(test)]
mod emulator;
mod gate;
pub mod launch;
mod relative;
mod residual_norm;
mod rotary;
mod row_dropout;
mod sample;

use std::sync::{Arc, Mutex, PoisonError};

use lambert_config::run::{Activation, OptimizerKind};
use tch::{Kind, Tensor};

use self::chunks::{CHUNK, ChunkTable};
#[cfg(test)]
pub use self::emulator::Emulator;
use self::launch::{KernelArguments, KernelDevice, THREADS};
use super::{
    Address, Angles, CrossEntropy, DropoutParams, Host, HostBuffer, Kernels, NormParams, OptimizerUpdate,
    PendingSnapshot, RelativeScores, SoftTargetGradient, SoftTargetParams, StateBuffers, TensorCopy, TimeMark,
    TokenDraws, TokenTargets, Values,
};
use crate::torch;

/// Source of the kernels.
pub const SOURCE: &str = concat!(
    include_str!("kernels.cu"),
    include_str!("norm.cu"),
    include_str!("rotary.cu"),
    include_str!("gate.cu"),
    include_str!("relative.cu"),
    include_str!("sample.cu"),
    include_str!("soft_targets.cu"),
    include_str!("cross_entropy.cu")
);

/// Kernel names in kernels.cu, without their `lambert_` prefix.
pub const KERNELS: [&str; 35] = [
    "dropout_f32",
    "dropout_bf16",
    "sum_of_squares",
    "norm_from_sums",
    "digest_chunks",
    "digest_sum",
    "scaled_directions",
    "scaled_step_sizes",
    "scaled_apply",
    "adamw",
    "to_bf16",
    "from_bf16",
    "residual_norm_f32",
    "residual_norm_bf16",
    "residual_norm_backward_f32",
    "residual_norm_backward_bf16",
    "add_column_sums",
    "rotate_f32",
    "rotate_bf16",
    "gate_f32",
    "gate_bf16",
    "gate_backward_f32",
    "gate_backward_bf16",
    "relative_softmax_f32",
    "relative_softmax_bf16",
    "relative_softmax_backward_f32",
    "relative_softmax_backward_bf16",
    "sample_tokens_f32",
    "sample_tokens_bf16",
    "soft_targets_f32",
    "soft_targets_bf16",
    "cross_entropy_f32",
    "cross_entropy_bf16",
    "cross_entropy_backward_f32",
    "cross_entropy_backward_bf16",
];

/// Kernels of a GPU or of the emulated GPU.
pub struct Cuda<C> {
    device: Arc<C>,
    /// Chunk table of the last update. The table is reused while the set of updated parameters stays the same.
    chunks: Mutex<Option<ChunkTable>>,
    /// Host copy of the gradients, for all-reduces in host memory.
    host: Mutex<Option<Tensor>>,
}

impl<C: KernelDevice> Cuda<C> {
    /// Creates the kernels for `device`.
    pub fn new(device: Arc<C>) -> Self {
        Self { device, chunks: Mutex::new(None), host: Mutex::new(None) }
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: KernelArguments) {
        launch(&*self.device, kernel, blocks, arguments);
    }

    /// Reduces `values` to a 0-d tensor of dtype `kind`. `chunk_kernel` computes one partial result per chunk, and
    /// `final_kernel` combines the partial results.
    fn reduce_chunks(&self, values: &Tensor, kind: Kind, chunk_kernel: &str, final_kernel: &str) -> Tensor {
        let count = values.numel();
        let blocks = count.div_ceil(CHUNK);
        let (partials, result) = (self.device.zeros(&[blocks as i64], kind), self.device.zeros(&[], kind));
        self.launch(
            chunk_kernel,
            blocks,
            KernelArguments::new().tensor(&partials).tensor(values).u64(count as u64).u32(CHUNK),
        );
        self.launch(final_kernel, 1, KernelArguments::new().tensor(&result).tensor(&partials).u32(blocks));
        result
    }

    fn scaled(
        &self,
        buffers: &mut StateBuffers<'_>,
        update: &OptimizerUpdate<'_>,
        chunks: &ChunkTable,
        constants: &Tensor,
    ) -> Tensor {
        let sums = self.device.zeros(&[2 * chunks.count as i64], Kind::Double);
        let arguments =
            KernelArguments::new().tensor(&chunks.table).tensor(constants).tensor(update.norm).f64(update.clip_norm);
        let arguments = arguments.tensor(buffers.weights).tensor(buffers.gradients);
        let arguments = arguments.tensor(buffers.first_moments).tensor(buffers.second_moments).tensor(&sums);
        self.launch("scaled_directions", chunks.count, arguments);
        let step_sizes = self.device.zeros(&[update.parameters.len() as i64], Kind::Float);
        let [min_ratio, max_ratio] = update.trust_ratio.unwrap_or([0.0, f64::INFINITY]);
        let arguments = KernelArguments::new().tensor(&step_sizes).tensor(constants).tensor(&chunks.ends).tensor(&sums);
        self.launch("scaled_step_sizes", update.parameters.len(), arguments.f64(min_ratio).f64(max_ratio));
        let arguments = KernelArguments::new().tensor(&chunks.table).tensor(&step_sizes).tensor(update.norm);
        let arguments = arguments
            .tensor(buffers.weights)
            .tensor(buffers.gradients)
            .optional_tensor(buffers.bf16_weights.as_deref());
        self.launch("scaled_apply", chunks.count, arguments);
        step_sizes
    }

    fn adamw(
        &self,
        buffers: &mut StateBuffers<'_>,
        update: &OptimizerUpdate<'_>,
        chunks: &ChunkTable,
        constants: &Tensor,
    ) {
        let arguments =
            KernelArguments::new().tensor(&chunks.table).tensor(constants).tensor(update.norm).f64(update.clip_norm);
        let arguments = arguments.tensor(buffers.weights).tensor(buffers.gradients);
        let arguments = arguments
            .tensor(buffers.first_moments)
            .tensor(buffers.second_moments)
            .optional_tensor(buffers.bf16_weights.as_deref());
        self.launch("adamw", chunks.count, arguments);
    }
}

impl<C: KernelDevice + 'static> Kernels for Cuda<C> {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        self.device.zeros(shape, kind)
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        self.device.to_device(Host.upload(values))
    }

    fn upload_async(&self, values: Values<'_>) -> Tensor {
        self.device.to_device_async(Host.upload(values))
    }

    fn wait_uploads(&self) {
        self.device.wait_uploads();
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> HostBuffer {
        self.device.host_buffer(bytes)
    }

    fn start_snapshot(&self, copies: Vec<TensorCopy>, into: HostBuffer) -> Box<dyn PendingSnapshot> {
        self.device.start_snapshot(copies, into)
    }

    fn wait_snapshots(&self) {
        self.device.wait_snapshots();
    }

    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
        torch::read_bytes(tensor, first, into);
    }

    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]) {
        torch::write_bytes(tensor, first, bytes);
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.device.fetch(numbers)
    }

    fn with_host_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        let mut cached = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let elements = tensor.numel();
        let host = cached.take().filter(|host| host.numel() >= elements);
        let host = host.unwrap_or_else(|| self.device.pinned_zeros(elements));
        let mut part = host.narrow(0, 0, elements as i64);
        part.copy_(&tensor.view([-1]));
        Host.with_host_floats(&mut part, work);
        tensor.view([-1]).copy_(&part);
        *cached = Some(host);
    }

    fn address(&self, tensor: &Tensor, element: usize) -> Option<Address> {
        let device = Some(self.device.device_index()?);
        Some(Address { pointer: launch::address(tensor, element)?, device })
    }

    fn prefers_fused_attention(&self) -> bool {
        true
    }

    fn has_unpadded_attention(&self) -> bool {
        self.device.has_unpadded_attention()
    }

    fn mark_time(&self) -> TimeMark {
        self.device.mark_time()
    }

    fn peak_memory(&self) -> Option<u64> {
        self.device.peak_memory()
    }

    fn reset_peak_memory(&self) {
        self.device.reset_peak_memory();
    }

    fn seed(&self, seed: u64) {
        self.device.seed(seed);
    }

    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
        apply_dropout(&*self.device, &(self.zeros(shape, Kind::Float) + 1.0), None, params)
    }

    fn dropout(&self, x: &Tensor, added: Option<&Tensor>, params: &DropoutParams<'_>) -> Tensor {
        let (device, samples) = (Arc::clone(&self.device), params.samples.shallow_clone());
        let positions = params.positions.map(Tensor::shallow_clone);
        let (key, threshold, scale) = (params.key, params.threshold, params.scale);
        let map = move |x: &Tensor, added: Option<&Tensor>| {
            let positions = positions.as_ref();
            apply_dropout(&*device, x, added, &DropoutParams { key, samples: &samples, positions, threshold, scale })
        };
        torch::self_adjoint(x, added, map)
    }

    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
        sample::draw(&*self.device, logits, draws)
    }

    fn soft_targets(&self, [student, teacher]: [&Tensor; 2], params: &SoftTargetParams<'_>) -> SoftTargetGradient {
        let [student, teacher] = [student, teacher].map(|logits| logits.detach().contiguous());
        let SoftTargetParams { vocabulary, temperature, weights } = *params;
        let [rows, width] = student.size()[..] else { panic!("soft targets: unsupported shape {:?}", student.size()) };
        assert_eq!(student.kind(), teacher.kind(), "soft targets: the dtypes differ");
        let gradient = student.empty_like();
        // Uninitialized values on the same device.
        let losses = student.select(1, 0).to_kind(Kind::Float).empty_like();
        let arguments = KernelArguments::new().tensor(&gradient).tensor(&losses).tensor(&student).tensor(&teacher);
        let arguments = arguments.optional_tensor(weights).u32(vocabulary as usize).u32(width as usize);
        let arguments = arguments.u32(teacher.size()[1] as usize).f32(temperature as f32);
        self.launch(&format!("soft_targets_{}", suffix(&student)), rows as usize, arguments);
        SoftTargetGradient { loss: losses.sum(Kind::Float), gradient }
    }

    fn has_cross_entropy(&self) -> bool {
        true
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &TokenTargets<'_>) -> CrossEntropy {
        cross_entropy::apply(&self.device, logits, targets)
    }

    fn has_residual_norm(&self, width: i64) -> bool {
        residual_norm::fits(width)
    }

    fn residual_norm(
        &self,
        x: &Tensor,
        residual: &Tensor,
        norm: &NormParams<'_>,
        dropout: Option<&DropoutParams<'_>>,
    ) -> Tensor {
        residual_norm::apply(&self.device, x, residual, norm, dropout)
    }

    fn has_rotation(&self, head_size: i64) -> bool {
        rotary::fits(head_size)
    }

    fn rotate(&self, query_key_value: &Tensor, angles: Angles<'_>) -> Tensor {
        rotary::apply(&self.device, query_key_value, angles)
    }

    fn has_relative_softmax(&self, length: i64) -> bool {
        relative::fits(length)
    }

    fn relative_softmax(
        &self,
        scores: &RelativeScores<'_>,
        mask: Option<&Tensor>,
        dropout: Option<&DropoutParams<'_>>,
    ) -> Tensor {
        relative::apply(&self.device, scores, mask, dropout)
    }

    fn has_gate(&self, width: i64) -> bool {
        gate::fits(width)
    }

    fn gate(&self, x: &Tensor, activation: Activation) -> Tensor {
        gate::apply(&self.device, x, activation)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        self.reduce_chunks(values, Kind::Double, "sum_of_squares", "norm_from_sums")
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        self.reduce_chunks(values, Kind::Int64, "digest_chunks", "digest_sum")
    }

    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
        let mut last = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let chunks = match last.take() {
            Some(chunks) if chunks.matches(update) => chunks,
            _ => ChunkTable::new(self, update),
        };
        let constants = self.upload(Values::U8(&chunks::constants(update)));
        let step_sizes = match update.kind {
            OptimizerKind::Lamb | OptimizerKind::StableAdamw => Some(self.scaled(buffers, update, &chunks, &constants)),
            OptimizerKind::Adamw | OptimizerKind::AdamBert | OptimizerKind::Muon => {
                self.adamw(buffers, update, &chunks, &constants);
                None
            }
        };
        *last = Some(chunks);
        step_sizes
    }
}

/// Suffix of the kernels for the dtype of `tensor`.
fn suffix(tensor: &Tensor) -> &'static str {
    match tensor.kind() {
        Kind::Float => "f32",
        Kind::BFloat16 => "bf16",
        other => panic!("no kernel for dtype {other:?}"),
    }
}

/// Launches a kernel. Panics if the device rejects the launch. (Failed libtorch operations panic, too.)
fn launch<C: KernelDevice>(device: &C, kernel: &str, blocks: usize, mut arguments: KernelArguments) {
    if blocks > 0 {
        device.launch(kernel, blocks, &mut arguments).unwrap_or_else(|message| panic!("kernel {kernel}: {message}"));
    }
}

/// Returns dropout(`x`) + `added`. `x` is \[batch, (heads,) positions, width\].
fn apply_dropout<C: KernelDevice>(
    device: &C,
    x: &Tensor,
    added: Option<&Tensor>,
    params: &DropoutParams<'_>,
) -> Tensor {
    let (x, added) = (x.contiguous(), added.map(Tensor::contiguous));
    let shape = x.size();
    let [.., positions, length] = shape[..] else { panic!("dropout: unsupported shape {shape:?}") };
    let heads = if shape.len() == 4 { shape[1] } else { 1 };
    let rows = shape[..shape.len() - 1].iter().product::<i64>() as usize;
    let kernel = match x.kind() {
        Kind::Float => "dropout_f32",
        Kind::BFloat16 => "dropout_bf16",
        other => panic!("dropout: unsupported dtype {other:?}"),
    };
    let out = x.empty_like();
    let arguments =
        KernelArguments::new().tensor(&out).tensor(&x).optional_tensor(added.as_ref()).tensor(params.samples);
    let arguments = arguments.optional_tensor(params.positions);
    let arguments = arguments.u64(params.key.bits()).u32(params.threshold.into()).f32(params.scale).u64(rows as u64);
    let arguments = arguments.u32(heads as usize).u32(positions as usize).u32(length as usize);
    launch(device, kernel, rows.div_ceil(THREADS / 32), arguments);
    out
}
