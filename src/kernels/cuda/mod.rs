//! GPUs: kernels of our own where keyed draws demand them or where they pay, libtorch's operations for the rest.
//!
//! - kernels.cu: the kernels, which are compiled for the card that is there ([`crate::gpu`])
//! - [`Card`]: what runs them: a GPU, or in tests a processor (`Emulator`)

mod chunks;
#[cfg(test)]
mod emulator;
pub mod launch;

use std::sync::{Arc, Mutex, PoisonError};

use lambert_config::run::OptimizerKind;
use tch::{Kind, Tensor};

use self::chunks::{CHUNK, Chunks};
#[cfg(test)]
pub use self::emulator::Emulator;
use self::launch::{Arguments, Card, THREADS};
use super::{Address, Buffers, Copies, Copy, Draws, Host, Kernels, Memory, Update, Values};
use crate::torch;

/// The kernels, as text.
pub const SOURCE: &str = include_str!("kernels.cu");

/// What kernels.cu has, each with `lambert_` before its name.
pub const KERNELS: [&str; 12] = [
    "dropout_f32",
    "dropout_bf16",
    "squares",
    "root_of_sums",
    "words",
    "sum_of_words",
    "lamb_directions",
    "lamb_rates",
    "lamb_apply",
    "adamw",
    "to_bf16",
    "from_bf16",
];

/// A card, or what stands for one.
pub struct Cuda<C> {
    card: Arc<C>,
    /// Of the last update.
    chunks: Mutex<Option<Chunks>>,
    /// Main memory that gradients are summed in where the card's own is out of reach.
    host: Mutex<Option<Tensor>>,
}

impl<C: Card> Cuda<C> {
    /// The kernels of `card`.
    pub fn new(card: Arc<C>) -> Self {
        Self { card, chunks: Mutex::new(None), host: Mutex::new(None) }
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: Arguments) {
        launch(&*self.card, kernel, blocks, arguments);
    }

    /// What `whole` makes of a number of `kind` for each chunk of `values`, which `chunk` makes; \[\].
    fn reduced(&self, values: &Tensor, kind: Kind, chunk: &str, whole: &str) -> Tensor {
        let count = values.numel();
        let blocks = count.div_ceil(CHUNK);
        let (parts, made) = (self.card.zeros(&[blocks as i64], kind), self.card.zeros(&[], kind));
        self.launch(chunk, blocks, Arguments::new().tensor(&parts).tensor(values).u64(count as u64).u32(CHUNK));
        self.launch(whole, 1, Arguments::new().tensor(&made).tensor(&parts).u32(blocks));
        made
    }

    fn lamb(&self, buffers: &mut Buffers<'_>, update: &Update<'_>, chunks: &Chunks, rules: &Tensor) -> Tensor {
        let sums = self.card.zeros(&[2 * chunks.count as i64], Kind::Double);
        let arguments = Arguments::new().tensor(&chunks.table).tensor(rules).tensor(update.norm).f64(update.clip_norm);
        let arguments = arguments.tensor(buffers.weights).tensor(buffers.gradients);
        let arguments = arguments.tensor(buffers.first).tensor(buffers.second).tensor(&sums);
        self.launch("lamb_directions", chunks.count, arguments);
        let rates = self.card.zeros(&[update.parameters.len() as i64], Kind::Float);
        let [least, most] = update.trust_ratio.unwrap_or([0.0, f64::INFINITY]);
        let arguments = Arguments::new().tensor(&rates).tensor(rules).tensor(&chunks.ends).tensor(&sums);
        self.launch("lamb_rates", update.parameters.len(), arguments.f64(least).f64(most));
        let arguments = Arguments::new().tensor(&chunks.table).tensor(&rates).tensor(update.norm);
        let arguments = arguments.tensor(buffers.weights).tensor(buffers.gradients).some(buffers.low.as_deref());
        self.launch("lamb_apply", chunks.count, arguments);
        rates
    }

    fn adamw(&self, buffers: &mut Buffers<'_>, update: &Update<'_>, chunks: &Chunks, rules: &Tensor) {
        let arguments = Arguments::new().tensor(&chunks.table).tensor(rules).tensor(update.norm).f64(update.clip_norm);
        let arguments = arguments.tensor(buffers.weights).tensor(buffers.gradients);
        let arguments = arguments.tensor(buffers.first).tensor(buffers.second).some(buffers.low.as_deref());
        self.launch("adamw", chunks.count, arguments);
    }
}

impl<C: Card + 'static> Kernels for Cuda<C> {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        self.card.zeros(shape, kind)
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        self.card.place(Host.upload(values))
    }

    fn send(&self, values: Values<'_>) -> Tensor {
        self.card.send(Host.upload(values))
    }

    fn order_sent(&self) {
        self.card.order_sent();
    }

    fn memory(&self, bytes: Vec<u8>) -> Memory {
        self.card.memory(bytes)
    }

    fn begin_copies(&self, copies: Vec<Copy>, into: Memory) -> Box<dyn Copies> {
        self.card.begin_copies(copies, into)
    }

    fn order_copies(&self) {
        self.card.order_copies();
    }

    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
        torch::read_bytes(tensor, first, into);
    }

    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]) {
        torch::write_bytes(tensor, first, bytes);
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        self.card.fetch(numbers)
    }

    fn with_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        let mut kept = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let elements = tensor.numel();
        let mut host = kept.take().filter(|host| host.numel() == elements);
        let host = host.get_or_insert_with(|| self.card.host_memory(elements));
        host.copy_(&tensor.view([-1]));
        Host.with_floats(host, work);
        tensor.view([-1]).copy_(host);
        *kept = Some(host.shallow_clone());
    }

    fn address(&self, tensor: &Tensor, element: usize) -> Option<Address> {
        let device = Some(self.card.number()?);
        Some(Address { first: launch::address(tensor, element)?, device })
    }

    fn prefers_fused(&self) -> bool {
        true
    }

    fn peak_memory(&self) -> Option<u64> {
        self.card.peak_memory()
    }

    fn seed(&self, seed: u64) {
        self.card.seed(seed);
    }

    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor {
        drop(&*self.card, &(self.zeros(shape, Kind::Float) + 1.0), None, draws)
    }

    fn dropout(&self, x: &Tensor, added: Option<&Tensor>, draws: &Draws<'_>) -> Tensor {
        let (card, samples) = (Arc::clone(&self.card), draws.samples.shallow_clone());
        let (key, dropped, scale) = (draws.key, draws.dropped, draws.scale);
        let map = move |x: &Tensor, added: Option<&Tensor>| {
            drop(&*card, x, added, &Draws { key, samples: &samples, dropped, scale })
        };
        torch::own_transpose(x, added, map)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        self.reduced(values, Kind::Double, "squares", "root_of_sums")
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        self.reduced(values, Kind::Int64, "words", "sum_of_words")
    }

    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor> {
        let mut last = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let chunks = match last.take() {
            Some(chunks) if chunks.are_of(update) => chunks,
            _ => Chunks::new(self, update),
        };
        let rules = self.upload(Values::U8(&chunks::rules(update)));
        let rates = match update.kind {
            OptimizerKind::Lamb => Some(self.lamb(buffers, update, &chunks, &rules)),
            OptimizerKind::Adamw | OptimizerKind::AdamBert => {
                self.adamw(buffers, update, &chunks, &rules);
                None
            }
        };
        *last = Some(chunks);
        rates
    }
}

/// Panics, as libtorch's operations do, where the card refuses.
fn launch<C: Card>(card: &C, kernel: &str, blocks: usize, mut arguments: Arguments) {
    if blocks > 0 {
        card.launch(kernel, blocks, &mut arguments).unwrap_or_else(|said| panic!("kernel {kernel}: {said}"));
    }
}

/// `x`, \[rows, (heads,) width, length\], times its factors, and `added` to that if there is something.
fn drop<C: Card>(card: &C, x: &Tensor, added: Option<&Tensor>, draws: &Draws<'_>) -> Tensor {
    let (x, added) = (x.contiguous(), added.map(Tensor::contiguous));
    let shape = x.size();
    let [.., width, length] = shape[..] else { panic!("dropout of {shape:?}") };
    let heads = if shape.len() == 4 { shape[1] } else { 1 };
    let lines = shape[..shape.len() - 1].iter().product::<i64>() as usize;
    let kernel = match x.kind() {
        Kind::Float => "dropout_f32",
        Kind::BFloat16 => "dropout_bf16",
        other => panic!("dropout of {other:?}"),
    };
    let out = x.empty_like();
    let arguments = Arguments::new().tensor(&out).tensor(&x).some(added.as_ref()).tensor(draws.samples);
    let arguments = arguments.u64(draws.key.bits()).u32(draws.dropped.into()).f32(draws.scale).u64(lines as u64);
    let arguments = arguments.u32(heads as usize).u32(width as usize).u32(length as usize);
    launch(card, kernel, lines.div_ceil(THREADS / 32), arguments);
    out
}
