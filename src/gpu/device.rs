//! A card of NVIDIA's, as the kernels see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};

use super::cubin::Cubin;
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

    /// The kernels in `code` on card `index`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(driver: &Arc<Driver>, index: usize, code: &Cubin) -> Result<Arc<Loaded>, DriverError> {
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
        // SAFETY: `Memory` frees the bytes after the pin, and never moves them.
        match unsafe { self.driver.pin(self.index, &mut bytes) } {
            Ok(pin) => Memory::pinned(bytes, Box::new(pin)),
            Err(error) => {
                tracing::warn!("copies to {} bytes of main memory will be slow: {error}", bytes.len());
                Memory::new(bytes)
            }
        }
    }

    fn begin_copies(&self, copies: Vec<Copy>, into: Memory) -> Box<dyn Copies> {
        Box::new(Begun::new(&self.down, copies, into))
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

/// A stream for copies out of a card's memory, as far as [`Begun`] knows it.
trait Downward: Send {
    /// Begins to copy bytes of `tensor`, from byte `first` on, into `into`.
    ///
    /// # Safety
    /// The memory of both stays until [`Downward::is_done`], and nobody touches that of `into`.
    unsafe fn begin_read(&self, tensor: &Tensor, first: usize, into: &mut [u8]);

    /// Whether all copies have been made.
    fn is_done(&self) -> bool;

    /// Waits until all copies have been made.
    fn wait(&self);
}

impl Downward for Lane {
    unsafe fn begin_read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
        // SAFETY: the caller's.
        unsafe { torch::begin_read(self, tensor, first, into) };
    }

    fn is_done(&self) -> bool {
        Self::is_done(self)
    }

    fn wait(&self) {
        Self::wait(self);
    }
}

/// Copies on a lane.
struct Begun<L: Downward> {
    lane: Arc<Mutex<L>>,
    /// The tensors among them stay until they have been copied.
    copies: Vec<Copy>,
    memory: Option<Memory>,
}

impl<L: Downward> Begun<L> {
    /// Begins `copies`. Where one cannot begin, this panics after those before it have been made: the value that is dropped
    /// then owns their memory already.
    fn new(lane: &Arc<Mutex<L>>, copies: Vec<Copy>, into: Memory) -> Self {
        let mut begun = Self { lane: Arc::clone(lane), copies, memory: Some(into) };
        // Let go of before `begun` is dropped, which waits for the lane.
        let lane = lock(lane);
        if let Some(memory) = &mut begun.memory {
            for Copy { tensor, first, to } in &begun.copies {
                // SAFETY: `begun` keeps both until the copies have been made, and gives nobody the memory before.
                unsafe { lane.begin_read(tensor, *first, &mut memory.bytes_mut()[to.clone()]) };
            }
        }
        drop(lane);
        begun
    }
}

impl<L: Downward> Copies for Begun<L> {
    fn are_done(&self) -> bool {
        lock(&self.lane).is_done()
    }

    fn wait(mut self: Box<Self>) -> Memory {
        lock(&self.lane).wait();
        self.copies.clear();
        self.memory.take().unwrap_or_else(|| Memory::new(Vec::new()))
    }
}

impl<L: Downward> Drop for Begun<L> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Copies when it is waited for, and fails to begin a third time.
    #[derive(Default)]
    struct Late {
        begun: Mutex<Vec<(Vec<u8>, usize)>>,
        waited: Arc<AtomicBool>,
    }

    impl Downward for Late {
        unsafe fn begin_read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
            let mut begun = lock(&self.begun);
            assert!(begun.len() < 2, "the stream is lost");
            let mut bytes = vec![0; into.len()];
            torch::read_bytes(tensor, first, &mut bytes);
            begun.push((bytes, into.as_mut_ptr() as usize));
        }

        fn is_done(&self) -> bool {
            lock(&self.begun).is_empty()
        }

        fn wait(&self) {
            for (bytes, into) in lock(&self.begun).drain(..) {
                // SAFETY: the memory stays until the copies are done; that is what is tested.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into as *mut u8, bytes.len()) };
            }
            self.waited.store(true, Ordering::Relaxed);
        }
    }

    /// Stands in for a pin: tells whether the copies were made when its memory is about to go.
    struct Witness(Arc<AtomicBool>, Arc<AtomicBool>);

    impl Drop for Witness {
        fn drop(&mut self) {
            self.1.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn copies(count: usize) -> Vec<Copy> {
        let copy = |i: usize| Copy { tensor: Tensor::from_slice(&[i as i32 + 1]), first: 0, to: 4 * i..4 * i + 4 };
        (0..count).map(copy).collect()
    }

    #[test]
    fn memory_stays_until_what_was_begun_is_copied() {
        let lane = Arc::new(Mutex::new(Late::default()));
        let begun = Box::new(Begun::new(&lane, copies(2), Memory::new(vec![0; 8])));
        assert!(!begun.are_done());
        assert_eq!(begun.wait().bytes(), [1, 0, 0, 0, 2, 0, 0, 0]);

        let (lane, in_time) = (Late::default(), Arc::new(AtomicBool::new(false)));
        let witness = Witness(Arc::clone(&lane.waited), Arc::clone(&in_time));
        let memory = Memory::pinned(vec![0; 12], Box::new(witness));
        let lane = Arc::new(Mutex::new(lane));
        let failed = torch::guard(|| Begun::new(&lane, copies(3), memory)).err().unwrap();
        assert!(failed.to_string().contains("the stream is lost"), "{failed}");
        assert!(in_time.load(Ordering::Relaxed), "the memory of copies under way was freed");
    }
}
