//! CUDA stream for gradient all-reduces, which runs beside the compute stream. Events order the work of both streams.
//!
//! All functions are documented at <https://docs.nvidia.com/cuda/cuda-driver-api>.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_collective::nccl::NcclDevice;
use lambert_collective::{Error, Result};

use super::driver::{CuResult, Driver, DriverError, LoadedKernels};
use crate::kernels::cuda::launch::THREADS;
use crate::torch::gpu;

type CuHandle = *mut c_void;

/// `CU_STREAM_NON_BLOCKING`: the stream does not synchronize with the default stream, which is the compute stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// Requested priority, higher than the priority of the compute stream. The driver clamps it to the supported range. A
/// high priority is useful because all ranks wait for all-reduces, and all-reduces use few multiprocessors.
const STREAM_PRIORITY: c_int = -5;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// Communication stream of a GPU.
pub struct CommStream {
    index: usize,
    kernels: Arc<LoadedKernels>,
    stream: CuHandle,
    scratch: Mutex<Bf16Scratch>,
}

// SAFETY: the driver is thread-safe, and streams and events may be used from any thread.
unsafe impl Send for CommStream {}
// SAFETY: as above.
unsafe impl Sync for CommStream {}

/// Device buffers for bf16 gradients. Buffers that became too small are kept until the stream is
/// dropped, because the stream may still use them.
#[derive(Default)]
struct Bf16Scratch {
    /// Device addresses of the buffers. The last buffer is in use.
    all: Vec<u64>,
    /// Capacity of the last buffer, in values.
    capacity: usize,
}

impl CommStream {
    /// Creates a stream on GPU `index`, with the kernels that are loaded on this GPU.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn new(index: usize, kernels: Arc<LoadedKernels>) -> Result<Self, DriverError> {
        type StreamCreate = unsafe extern "C" fn(*mut CuHandle, c_uint, c_int) -> CuResult;
        kernels.make_current()?;
        let create = kernels.driver().symbol::<StreamCreate>("cuStreamCreateWithPriority")?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the handle outlives the call.
        let status = unsafe { create(&raw mut stream, STREAM_NON_BLOCKING, STREAM_PRIORITY) };
        kernels.driver().check("cuStreamCreateWithPriority", status)?;
        Ok(Self { index, kernels, stream, scratch: Mutex::default() })
    }

    fn driver(&self) -> &Driver {
        self.kernels.driver()
    }

    fn record(&self, stream: CuHandle) -> Result<CudaEvent, DriverError> {
        type EventCreate = unsafe extern "C" fn(*mut CuHandle, c_uint) -> CuResult;
        type EventRecord = unsafe extern "C" fn(CuHandle, CuHandle) -> CuResult;
        let (create, record) = (
            self.driver().symbol::<EventCreate>("cuEventCreate")?,
            self.driver().symbol::<EventRecord>("cuEventRecord")?,
        );
        let mut event = std::ptr::null_mut();
        // SAFETY: the handle outlives the call.
        self.driver().check("cuEventCreate", unsafe { create(&raw mut event, NO_TIMING) })?;
        let event = CudaEvent { handle: event, kernels: Arc::clone(&self.kernels) };
        // SAFETY: `event` was created above, and `stream` belongs to the same context.
        self.driver().check("cuEventRecord", unsafe { record(event.handle, stream) })?;
        Ok(event)
    }

    /// Returns a buffer for `count` bf16 values. Allocates a buffer if the current one is too small.
    fn reserve_bf16(&self, count: usize) -> Result<u64, DriverError> {
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> CuResult;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = scratch.all.last().filter(|_| count <= scratch.capacity) {
            return Ok(*address);
        }
        let allocate = self.driver().symbol::<Allocate>("cuMemAlloc_v2")?;
        let mut address = 0;
        // SAFETY: the integer outlives the call.
        self.driver().check("cuMemAlloc", unsafe { allocate(&raw mut address, size_of::<u16>() * count) })?;
        scratch.all.push(address);
        scratch.capacity = count;
        Ok(address)
    }

    /// Launches a conversion kernel, whose arguments are destination, source and number of elements.
    fn convert(&self, kernel: &str, (mut to, mut from): (u64, u64), count: usize) -> Result<(), DriverError> {
        let mut elements = count as u64;
        let mut arguments = [&raw mut to, &raw mut from, &raw mut elements].map(<*mut u64>::cast);
        // SAFETY: the kernel has these three parameters, and both addresses point to `count` values.
        unsafe { self.kernels.launch(kernel, count.div_ceil(THREADS), THREADS, self.stream, &mut arguments) }
    }

    fn failed(&self, operation: &'static str) -> impl Fn(DriverError) -> Error {
        let ordinal = self.index;
        move |error| Error::Device { operation, ordinal, text: error.to_string() }
    }
}

impl Drop for CommStream {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        let undo = || {
            self.kernels.make_current()?;
            let destroy = self.driver().symbol::<unsafe extern "C" fn(CuHandle) -> CuResult>("cuStreamDestroy_v2")?;
            // SAFETY: the stream was created in `new` and is destroyed once. The driver completes pending work first.
            self.driver().check("cuStreamDestroy", unsafe { destroy(self.stream) })?;
            let free = self.driver().symbol::<unsafe extern "C" fn(u64) -> CuResult>("cuMemFree_v2")?;
            for address in scratch.all {
                // SAFETY: the buffer was allocated in `reserve_bf16` and is freed once. The driver
                // waits for pending work.
                self.driver().check("cuMemFree", unsafe { free(address) })?;
            }
            Ok::<_, DriverError>(())
        };
        if let Err(error) = undo() {
            tracing::debug!("cannot destroy the communication stream: {error}");
        }
    }
}

/// CUDA event.
pub struct CudaEvent {
    handle: CuHandle,
    kernels: Arc<LoadedKernels>,
}

// SAFETY: the driver is thread-safe.
unsafe impl Send for CudaEvent {}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let destroy = self.kernels.driver().symbol::<unsafe extern "C" fn(CuHandle) -> CuResult>("cuEventDestroy_v2");
        if let Ok(destroy) = destroy {
            // SAFETY: the event was created in `record` and is destroyed once. The driver
            // keeps the event while a stream waits for it.
            let _ = unsafe { destroy(self.handle) };
        }
    }
}

// SAFETY: the stream lives as long as the value, and bf16 buffers are freed only together with the stream.
unsafe impl NcclDevice for CommStream {
    type StreamEvent = CudaEvent;

    fn ordinal(&self) -> usize {
        self.index
    }

    fn make_current(&self) -> Result<()> {
        self.kernels.make_current().map_err(self.failed("make the context current"))
    }

    fn comm_stream(&self) -> CuHandle {
        self.stream
    }

    fn record_compute_event(&self) -> Result<CudaEvent> {
        let refused = |text| Error::Device { operation: "query the compute stream", ordinal: self.index, text };
        let computing = gpu::current_stream(self.index).map_err(refused)?;
        self.record(computing).map_err(self.failed("record an event after the gradients"))
    }

    fn record_comm_event(&self) -> Result<CudaEvent> {
        self.record(self.stream).map_err(self.failed("record an event after an all-reduce"))
    }

    fn wait_event(&self, event: &CudaEvent) -> Result<()> {
        type Wait = unsafe extern "C" fn(CuHandle, CuHandle, c_uint) -> CuResult;
        let wait = || {
            let wait = self.driver().symbol::<Wait>("cuStreamWaitEvent")?;
            // SAFETY: the stream and the event belong to the same context.
            self.driver().check("cuStreamWaitEvent", unsafe { wait(self.stream, event.handle, 0) })
        };
        wait().map_err(self.failed("wait for the gradients"))
    }

    fn is_complete(&self, event: &CudaEvent) -> Result<bool> {
        let query = self.driver().symbol::<unsafe extern "C" fn(CuHandle) -> CuResult>("cuEventQuery");
        let query = query.map_err(self.failed("query an event"))?;
        // SAFETY: the event was recorded.
        match unsafe { query(event.handle) } {
            NOT_READY => Ok(false),
            code => self.driver().check("cuEventQuery", code).map(|()| true).map_err(self.failed("all-reduce")),
        }
    }

    fn cast_to_bf16(&self, from: u64, count: usize) -> Result<u64> {
        let narrow = || {
            let to = self.reserve_bf16(count)?;
            self.convert("to_bf16", (to, from), count).map(|()| to)
        };
        narrow().map_err(self.failed("round gradients to bf16"))
    }

    fn cast_from_bf16(&self, to: u64, count: usize) -> Result<()> {
        let from = self.reserve_bf16(count).map_err(self.failed("allocate bf16 gradients"))?;
        self.convert("from_bf16", (to, from), count).map_err(self.failed("convert gradients to f32"))
    }
}
