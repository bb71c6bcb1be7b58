//! A stream of a card beside the computing one, for sums over ranks; events order one after the other.
//!
//! Every function here is one of <https://docs.nvidia.com/cuda/cuda-driver-api>.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_collective::nccl::NcclDevice;
use lambert_collective::{Error, Result};

use super::driver::{Driver, DriverError, Loaded, Status};
use crate::kernels::cuda::launch::THREADS;
use crate::torch::card;

type Handle = *mut c_void;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream, which is the computing one.
const NON_BLOCKING: c_uint = 1;
/// Above the computing stream's, as far as the card has it: sums take few of its processors, and all ranks wait for them.
const PRIORITY: c_int = -5;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// What sums of a card run on.
pub struct SumStream {
    index: usize,
    kernels: Arc<Loaded>,
    stream: Handle,
    narrowed: Mutex<Narrowed>,
}

// SAFETY: the driver's functions may be called by any thread, with any stream or event of the process.
unsafe impl Send for SumStream {}
// SAFETY: as above.
unsafe impl Sync for SumStream {}

/// Memory for gradients in bf16; what was too short stays until the end, because the stream may still use it.
#[derive(Default)]
struct Narrowed {
    /// Addresses; the last one is in use.
    all: Vec<u64>,
    /// Values that the last one holds.
    room: usize,
}

impl SumStream {
    /// One of card `index`, with the kernels of that card.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(index: usize, kernels: Arc<Loaded>) -> Result<Self, DriverError> {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> Status;
        kernels.enter()?;
        let create = kernels.driver().symbol::<Create>("cuStreamCreateWithPriority")?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the handle's place lives for the call.
        let made = unsafe { create(&raw mut stream, NON_BLOCKING, PRIORITY) };
        kernels.driver().check("cuStreamCreateWithPriority", made)?;
        Ok(Self { index, kernels, stream, narrowed: Mutex::default() })
    }

    fn driver(&self) -> &Driver {
        self.kernels.driver()
    }

    fn record(&self, stream: Handle) -> Result<Event, DriverError> {
        type Create = unsafe extern "C" fn(*mut Handle, c_uint) -> Status;
        type Record = unsafe extern "C" fn(Handle, Handle) -> Status;
        let (create, record) =
            (self.driver().symbol::<Create>("cuEventCreate")?, self.driver().symbol::<Record>("cuEventRecord")?);
        let mut event = std::ptr::null_mut();
        // SAFETY: the handle's place lives for the call.
        self.driver().check("cuEventCreate", unsafe { create(&raw mut event, NO_TIMING) })?;
        let event = Event { handle: event, kernels: Arc::clone(&self.kernels) };
        // SAFETY: an event from above, and a stream of the same context.
        self.driver().check("cuEventRecord", unsafe { record(event.handle, stream) })?;
        Ok(event)
    }

    /// Memory for so many values.
    fn room(&self, count: usize) -> Result<u64, DriverError> {
        type Allocate = unsafe extern "C" fn(*mut u64, usize) -> Status;
        let mut narrowed = self.narrowed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = narrowed.all.last().filter(|_| count <= narrowed.room) {
            return Ok(*address);
        }
        let allocate = self.driver().symbol::<Allocate>("cuMemAlloc_v2")?;
        let mut address = 0;
        // SAFETY: the integer lives for the call.
        self.driver().check("cuMemAlloc", unsafe { allocate(&raw mut address, size_of::<u16>() * count) })?;
        narrowed.all.push(address);
        narrowed.room = count;
        Ok(address)
    }

    /// Starts a kernel of two addresses and a number of elements.
    fn convert(&self, kernel: &str, (mut to, mut from): (u64, u64), count: usize) -> Result<(), DriverError> {
        let mut elements = count as u64;
        let mut arguments = [&raw mut to, &raw mut from, &raw mut elements].map(<*mut u64>::cast);
        // SAFETY: the kernel has these three parameters; both addresses have so many values.
        unsafe { self.kernels.launch(kernel, count.div_ceil(THREADS), THREADS, self.stream, &mut arguments) }
    }

    fn failed(&self, operation: &'static str) -> impl Fn(DriverError) -> Error {
        let ordinal = self.index;
        move |error| Error::Device { operation, ordinal, text: error.to_string() }
    }
}

impl Drop for SumStream {
    fn drop(&mut self) {
        let narrowed = std::mem::take(&mut *self.narrowed.lock().unwrap_or_else(PoisonError::into_inner));
        let undo = || {
            self.kernels.enter()?;
            let destroy = self.driver().symbol::<unsafe extern "C" fn(Handle) -> Status>("cuStreamDestroy_v2")?;
            // SAFETY: made above, and given back once; the driver lets its work end.
            self.driver().check("cuStreamDestroy", unsafe { destroy(self.stream) })?;
            let free = self.driver().symbol::<unsafe extern "C" fn(u64) -> Status>("cuMemFree_v2")?;
            for address in narrowed.all {
                // SAFETY: made above, and given back once; the driver waits for what uses it.
                self.driver().check("cuMemFree", unsafe { free(address) })?;
            }
            Ok::<_, DriverError>(())
        };
        if let Err(error) = undo() {
            tracing::debug!("the stream of sums is not given back: {error}");
        }
    }
}

/// A place in the order of a stream.
pub struct Event {
    handle: Handle,
    kernels: Arc<Loaded>,
}

// SAFETY: as for the stream.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        let destroy = self.kernels.driver().symbol::<unsafe extern "C" fn(Handle) -> Status>("cuEventDestroy_v2");
        if let Ok(destroy) = destroy {
            // SAFETY: made by `record`, and given back once; the driver keeps it as long as a stream waits for it.
            let _ = unsafe { destroy(self.handle) };
        }
    }
}

// SAFETY: the stream lives until the value is dropped; memory for narrowed values is never given back before.
unsafe impl NcclDevice for SumStream {
    type StreamEvent = Event;

    fn ordinal(&self) -> usize {
        self.index
    }

    fn make_current(&self) -> Result<()> {
        self.kernels.enter().map_err(self.failed("entering the context"))
    }

    fn comm_stream(&self) -> Handle {
        self.stream
    }

    fn record_compute_event(&self) -> Result<Event> {
        let refused = |text| Error::Device { operation: "the computing stream", ordinal: self.index, text };
        let computing = card::current_stream(self.index).map_err(refused)?;
        self.record(computing).map_err(self.failed("an event behind the gradients"))
    }

    fn record_comm_event(&self) -> Result<Event> {
        self.record(self.stream).map_err(self.failed("an event behind a sum"))
    }

    fn wait_event(&self, event: &Event) -> Result<()> {
        type Wait = unsafe extern "C" fn(Handle, Handle, c_uint) -> Status;
        let wait = || {
            let wait = self.driver().symbol::<Wait>("cuStreamWaitEvent")?;
            // SAFETY: a stream and an event of one context.
            self.driver().check("cuStreamWaitEvent", unsafe { wait(self.stream, event.handle, 0) })
        };
        wait().map_err(self.failed("waiting for the gradients"))
    }

    fn is_complete(&self, event: &Event) -> Result<bool> {
        let query = self.driver().symbol::<unsafe extern "C" fn(Handle) -> Status>("cuEventQuery");
        let query = query.map_err(self.failed("asking for an event"))?;
        // SAFETY: an event that was recorded.
        match unsafe { query(event.handle) } {
            NOT_READY => Ok(false),
            code => self.driver().check("cuEventQuery", code).map(|()| true).map_err(self.failed("a sum")),
        }
    }

    fn cast_to_bf16(&self, from: u64, count: usize) -> Result<u64> {
        let narrow = || {
            let to = self.room(count)?;
            self.convert("to_bf16", (to, from), count).map(|()| to)
        };
        narrow().map_err(self.failed("rounding gradients to bf16"))
    }

    fn cast_from_bf16(&self, to: u64, count: usize) -> Result<()> {
        let from = self.room(count).map_err(self.failed("memory of gradients in bf16"))?;
        self.convert("from_bf16", (to, from), count).map_err(self.failed("widening gradients"))
    }
}
