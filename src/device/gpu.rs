//! A card of NVIDIA's, as the kernels see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};

use super::driver::{Driver, DriverError, Loaded};
use crate::kernels::cuda::KERNELS;
use crate::kernels::cuda::launch::{Arguments, Card, THREADS};
use crate::kernels::{Copies, Copy, Host, Kernels, Memory};
use crate::torch::{self, card, card::Lane};

/// Bytes of memory that is worth pinning.
const SMALLEST_PINNED: usize = 1 << 20;

/// A card and its kernels.
pub struct Gpu {
    index: usize,
    driver: Arc<Driver>,
    loaded: Arc<Loaded>,
    /// Micro-batches go to the card on this one.
    up: Mutex<Lane>,
    /// Snapshots come from it on this one.
    down: Arc<Mutex<Lane>>,
}

impl Gpu {
    /// Card `index`, with the kernels of [`Gpu::load`].
    pub fn new(driver: Arc<Driver>, index: usize, loaded: Arc<Loaded>) -> Self {
        let lane = || Mutex::new(Lane::new(index));
        Self { index, driver, loaded, up: lane(), down: Arc::new(lane()) }
    }

    /// The kernels in `code`, a cubin, on card `index`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(driver: &Arc<Driver>, index: usize, code: &[u8]) -> Result<Arc<Loaded>, DriverError> {
        Loaded::new(Arc::clone(driver), index, code, &KERNELS).map(Arc::new)
    }

    fn device(&self) -> Device {
        Device::Cuda(self.index)
    }
}

impl Card for Gpu {
    fn number(&self) -> Option<usize> {
        Some(self.index)
    }

    fn host_memory(&self, elements: usize) -> Tensor {
        Tensor::zeros([elements as i64], (Kind::Float, Device::Cpu)).pin_memory(self.device())
    }

    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, self.device()))
    }

    fn place(&self, host: Tensor) -> Tensor {
        let lane = lock(&self.up);
        let placed = lane.send(&host);
        lane.order();
        placed
    }

    fn send(&self, host: Tensor) -> Tensor {
        lock(&self.up).send(&host)
    }

    fn order_sent(&self) {
        lock(&self.up).order();
    }

    fn memory(&self, mut bytes: Vec<u8>) -> Memory {
        // Smaller ones may have pages in common, which cannot be pinned twice.
        if bytes.len() < SMALLEST_PINNED {
            return Memory::new(bytes);
        }
        match self.driver.pin(self.index, &mut bytes) {
            Ok(pin) => Memory::pinned(bytes, Box::new(pin)),
            Err(error) => {
                tracing::warn!("copies to {} bytes of main memory will be slow: {error}", bytes.len());
                Memory::new(bytes)
            }
        }
    }

    fn begin_copies(&self, copies: Vec<Copy>, mut into: Memory) -> Box<dyn Copies> {
        let lane = lock(&self.down);
        for Copy { tensor, first, to } in &copies {
            // SAFETY: `Begun` keeps both until the copies have been made, and gives nobody the memory before.
            unsafe { torch::begin_read(&lane, tensor, *first, &mut into.bytes_mut()[to.clone()]) };
        }
        Box::new(Begun { lane: Arc::clone(&self.down), copies, memory: Some(into) })
    }

    fn order_copies(&self) {
        lock(&self.down).order();
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(&numbers.to_device(Device::Cpu))
    }

    fn peak_memory(&self) -> Option<u64> {
        card::peak_memory(self.index).ok()
    }

    fn seed(&self, seed: u64) {
        card::seed(self.index, seed);
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut Arguments) -> Result<(), String> {
        let stream = card::current_stream(self.index)?;
        // SAFETY: src/kernels/cuda passes what kernels.cu has; the tests run the same calls by the emulator.
        let launched = unsafe { self.loaded.launch(kernel, blocks, THREADS, stream, arguments.pointers()) };
        launched.map_err(|error| error.to_string())
    }
}

/// Copies on a lane.
struct Begun {
    lane: Arc<Mutex<Lane>>,
    /// The tensors among them stay until they have been copied.
    copies: Vec<Copy>,
    memory: Option<Memory>,
}

impl Copies for Begun {
    fn are_done(&self) -> bool {
        lock(&self.lane).is_done()
    }

    fn wait(mut self: Box<Self>) -> Memory {
        lock(&self.lane).wait();
        self.copies.clear();
        self.memory.take().unwrap_or_else(|| Memory::new(Vec::new()))
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // What fails here ends the rank elsewhere.
        if self.memory.is_some() && torch::guard(|| lock(&self.lane).wait()).is_err() {
            // The card may still write there.
            std::mem::forget(self.memory.take());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
