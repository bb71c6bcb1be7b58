//! Runs the kernels on an NVIDIA GPU.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, Tensor};

use super::Gpu;
use super::cubin::Cubin;
use super::driver::{Driver, DriverError, LoadedKernels};
use crate::kernels::cuda::KERNELS;
use crate::kernels::cuda::launch::{KernelArguments, KernelDevice, THREADS};
use crate::kernels::{Host, HostBuffer, Kernels, PendingSnapshot, TensorCopy, TimeMark};
use crate::torch::{self, gpu, gpu::CopyStream};

/// Minimum size of a pinned buffer in bytes.
const MIN_PINNED_BYTES: usize = 1 << 20;

/// Minimum compute capability for flash attention.
const FLASH_ATTENTION: (i32, i32) = (8, 0);

/// A GPU with loaded kernels and its copy streams.
pub struct CudaDevice {
    index: usize,
    driver: Arc<Driver>,
    kernels: Arc<LoadedKernels>,
    /// True if libtorch's flash attention supports the GPU.
    has_flash_attention: bool,
    /// Stream for host-to-device copies of micro-batches.
    upload_stream: Mutex<CopyStream>,
    /// Stream for device-to-host copies of snapshots.
    readback_stream: Arc<Mutex<CopyStream>>,
}

impl CudaDevice {
    /// Creates a device for `gpu`, with the kernels from [`CudaDevice::load`].
    pub fn new(driver: Arc<Driver>, gpu: &Gpu, kernels: Arc<LoadedKernels>) -> Self {
        let index = gpu.index;
        let stream = || Mutex::new(CopyStream::new(index));
        let has_flash_attention = gpu.properties.compute_capability >= FLASH_ATTENTION;
        let (upload_stream, readback_stream) = (stream(), Arc::new(stream()));
        Self { index, driver, kernels, has_flash_attention, upload_stream, readback_stream }
    }

    /// Loads the kernels in `code` on GPU `index`.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn load(driver: &Arc<Driver>, index: usize, code: &Cubin) -> Result<Arc<LoadedKernels>, DriverError> {
        LoadedKernels::new(Arc::clone(driver), index, code, &KERNELS).map(Arc::new)
    }

    fn device(&self) -> Device {
        Device::Cuda(self.index)
    }
}

impl KernelDevice for CudaDevice {
    fn device_index(&self) -> Option<usize> {
        Some(self.index)
    }

    fn has_unpadded_attention(&self) -> bool {
        self.has_flash_attention
    }

    fn pinned_zeros(&self, elements: usize) -> Tensor {
        Tensor::zeros([elements as i64], (Kind::Float, Device::Cpu)).pin_memory(self.device())
    }

    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, self.device()))
    }

    fn to_device(&self, host: Tensor) -> Tensor {
        let stream = lock(&self.upload_stream);
        let tensor = stream.upload(&host);
        stream.join();
        tensor
    }

    fn to_device_async(&self, host: Tensor) -> Tensor {
        lock(&self.upload_stream).upload(&host)
    }

    fn wait_uploads(&self) {
        lock(&self.upload_stream).join();
    }

    fn host_buffer(&self, mut bytes: Vec<u8>) -> HostBuffer {
        // Small allocations may share a page, and a page cannot be pinned twice.
        if bytes.len() < MIN_PINNED_BYTES {
            return HostBuffer::new(bytes);
        }
        // SAFETY: `HostBuffer` drops the pin before the bytes and never reallocates the bytes.
        match unsafe { self.driver.pin(self.index, &mut bytes) } {
            Ok(pin) => HostBuffer::pinned(bytes, Box::new(pin)),
            Err(error) => {
                tracing::warn!(
                    "cannot pin {} bytes of host memory, device-to-host copies will be slow: {error}",
                    bytes.len()
                );
                HostBuffer::new(bytes)
            }
        }
    }

    fn start_snapshot(&self, copies: Vec<TensorCopy>, into: HostBuffer) -> Box<dyn PendingSnapshot> {
        Box::new(StreamSnapshot::new(&self.readback_stream, copies, into))
    }

    fn wait_snapshots(&self) {
        lock(&self.readback_stream).join();
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(&numbers.to_device(Device::Cpu))
    }

    fn mark_time(&self) -> TimeMark {
        TimeMark::Gpu(gpu::TimeEvent::record(self.index))
    }

    fn peak_memory(&self) -> Option<u64> {
        gpu::peak_memory(self.index).ok()
    }

    fn reset_peak_memory(&self) {
        if let Err(error) = gpu::reset_peak_memory(self.index) {
            tracing::debug!("the peak memory includes that of the first matrix product: {error}");
        }
    }

    fn seed(&self, seed: u64) {
        gpu::seed(self.index, seed);
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut KernelArguments) -> Result<(), String> {
        let stream = gpu::current_stream(self.index)?;
        // SAFETY: the arguments from src/kernels/cuda match the kernel signatures in kernels.cu. The
        // tests make the same calls in the emulator.
        let launched = unsafe { self.kernels.launch(kernel, blocks, THREADS, stream, arguments.pointers()) };
        launched.map_err(|error| error.to_string())
    }
}

/// Operations that [`StreamSnapshot`] needs from a device-to-host copy stream.
trait ReadbackStream: Send {
    /// Starts copying bytes of `tensor`, from byte `src_offset` on, to `into`.
    ///
    /// # Safety
    /// `tensor` and `into` must stay allocated until [`ReadbackStream::is_done`] returns true.
    /// Until then, `into` must not be accessed.
    unsafe fn begin_read(&self, tensor: &Tensor, src_offset: usize, into: &mut [u8]);

    /// True if all copies are complete.
    fn is_done(&self) -> bool;

    /// Blocks until all copies are complete.
    fn wait(&self);
}

impl ReadbackStream for CopyStream {
    unsafe fn begin_read(&self, tensor: &Tensor, src_offset: usize, into: &mut [u8]) {
        // SAFETY: guaranteed by the caller.
        unsafe { torch::begin_read(self, tensor, src_offset, into) };
    }

    fn is_done(&self) -> bool {
        Self::is_done(self)
    }

    fn wait(&self) {
        Self::wait(self);
    }
}

/// A snapshot whose copies run on a stream.
struct StreamSnapshot<L: ReadbackStream> {
    stream: Arc<Mutex<L>>,
    /// Keeps the source tensors alive until they are copied.
    copies: Vec<TensorCopy>,
    buffer: Option<HostBuffer>,
}

impl<L: ReadbackStream> StreamSnapshot<L> {
    /// Starts `copies`. Panics if a copy cannot start. Unwinding then drops the snapshot, which waits for the copies
    /// already started before it frees the memory.
    fn new(stream: &Arc<Mutex<L>>, copies: Vec<TensorCopy>, into: HostBuffer) -> Self {
        let mut snapshot = Self { stream: Arc::clone(stream), copies, buffer: Some(into) };
        // The lock is declared after `snapshot`, so that unwinding releases it first.
        // Dropping the snapshot takes the lock again.
        let stream = lock(stream);
        if let Some(buffer) = &mut snapshot.buffer {
            for TensorCopy { tensor, src_offset, dst_range } in &snapshot.copies {
                // SAFETY: `snapshot` owns the tensor and the buffer until the copies complete, and
                // does not expose the buffer before.
                unsafe { stream.begin_read(tensor, *src_offset, &mut buffer.bytes_mut()[dst_range.clone()]) };
            }
        }
        drop(stream);
        snapshot
    }
}

impl<L: ReadbackStream> PendingSnapshot for StreamSnapshot<L> {
    fn is_complete(&self) -> bool {
        lock(&self.stream).is_done()
    }

    fn wait(mut self: Box<Self>) -> HostBuffer {
        lock(&self.stream).wait();
        self.copies.clear();
        self.buffer.take().unwrap_or_else(|| HostBuffer::new(Vec::new()))
    }
}

impl<L: ReadbackStream> Drop for StreamSnapshot<L> {
    fn drop(&mut self) {
        // The error is not lost. CUDA errors are sticky, so the next call to the device reports the error again.
        if self.buffer.is_some() && torch::guard(|| lock(&self.stream).wait()).is_err() {
            // The GPU may still write to the buffer.
            std::mem::forget(self.buffer.take());
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

    /// Stream that copies only when `wait` is called, and fails to start a third copy.
    #[derive(Default)]
    struct DeferredStream {
        pending: Mutex<Vec<(Vec<u8>, usize)>>,
        waited: Arc<AtomicBool>,
    }

    impl ReadbackStream for DeferredStream {
        unsafe fn begin_read(&self, tensor: &Tensor, src_offset: usize, into: &mut [u8]) {
            let mut pending = lock(&self.pending);
            assert!(pending.len() < 2, "the stream is lost");
            let mut bytes = vec![0; into.len()];
            torch::read_bytes(tensor, src_offset, &mut bytes);
            pending.push((bytes, into.as_mut_ptr() as usize));
        }

        fn is_done(&self) -> bool {
            lock(&self.pending).is_empty()
        }

        fn wait(&self) {
            for (bytes, into) in lock(&self.pending).drain(..) {
                // SAFETY: the memory must outlive the copies, which the test verifies.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into as *mut u8, bytes.len()) };
            }
            self.waited.store(true, Ordering::Relaxed);
        }
    }

    /// Stands in for the pin of a buffer. Records whether the copies were complete when the buffer was freed.
    struct FreeWitness(Arc<AtomicBool>, Arc<AtomicBool>);

    impl Drop for FreeWitness {
        fn drop(&mut self) {
            self.1.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn copies(count: usize) -> Vec<TensorCopy> {
        let copy = |i: usize| TensorCopy {
            tensor: Tensor::from_slice(&[i as i32 + 1]),
            src_offset: 0,
            dst_range: 4 * i..4 * i + 4,
        };
        (0..count).map(copy).collect()
    }

    #[test]
    fn buffer_outlives_pending_copies() {
        let stream = Arc::new(Mutex::new(DeferredStream::default()));
        let snapshot = Box::new(StreamSnapshot::new(&stream, copies(2), HostBuffer::new(vec![0; 8])));
        assert!(!snapshot.is_complete());
        assert_eq!(snapshot.wait().bytes(), [1, 0, 0, 0, 2, 0, 0, 0]);

        let (stream, in_time) = (DeferredStream::default(), Arc::new(AtomicBool::new(false)));
        let witness = FreeWitness(Arc::clone(&stream.waited), Arc::clone(&in_time));
        let memory = HostBuffer::pinned(vec![0; 12], Box::new(witness));
        let stream = Arc::new(Mutex::new(stream));
        let failed = torch::guard(|| StreamSnapshot::new(&stream, copies(3), memory)).err().unwrap();
        assert!(failed.to_string().contains("the stream is lost"), "{failed}");
        assert!(in_time.load(Ordering::Relaxed), "buffer was freed while copies were pending");
    }
}
