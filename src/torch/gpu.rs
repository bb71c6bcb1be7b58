//! libtorch GPU functions: random generator, streams, memory statistics.

use std::cell::RefCell;
use std::ffi::c_void;

use tch::Tensor;

use super::{Failed, LAST_ERROR_TEXT, failed, made};

unsafe extern "C" {
    fn lambert_exit_on_cuda_error(code: i32);
    fn lambert_use_deterministic_algorithms(failed: Failed) -> i32;
    fn lambert_allow_tf32(allowed: bool, failed: Failed) -> i32;
    fn lambert_disable_cudnn_attention(failed: Failed) -> i32;
    fn lambert_seed_gpu(index: i32, seed: u64, failed: Failed) -> i32;
    fn lambert_current_stream(index: i32, stream: *mut *mut c_void, failed: Failed) -> i32;
    fn lambert_peak_memory(index: i32, bytes: *mut i64, failed: Failed) -> i32;
    fn lambert_reset_peak_memory(index: i32, failed: Failed) -> i32;
    fn lambert_copy_stream(index: i32, failed: Failed) -> *mut c_void;
    fn lambert_copy_stream_delete(stream: *mut c_void);
    fn lambert_copy_stream_upload(
        stream: *mut c_void,
        host: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
    fn lambert_copy_stream_download(
        stream: *mut c_void,
        to: *const torch_sys::C_tensor,
        from: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> i32;
    fn lambert_copy_stream_join(stream: *mut c_void, failed: Failed) -> i32;
    fn lambert_copy_stream_is_done(stream: *const c_void, failed: Failed) -> i32;
    fn lambert_copy_stream_wait(stream: *const c_void, failed: Failed) -> i32;
    fn lambert_time_event(index: i32, failed: Failed) -> *mut c_void;
    fn lambert_time_event_delete(event: *mut c_void);
    fn lambert_time_between(from: *const c_void, to: *const c_void, milliseconds: *mut f64, failed: Failed) -> i32;
}

/// Panics if libtorch reported a failure, as tch does.
fn check(code: i32) -> i32 {
    assert!(code >= 0, "{}", LAST_ERROR_TEXT.with(RefCell::take));
    code
}

/// From now on, a CUDA error in a destructor of libtorch ends this process with `code` and one line. Otherwise it would
/// abort the process.
pub fn exit_on_cuda_error(code: i32) {
    // SAFETY: the function only sets the handler of uncaught exceptions, which ends the process.
    unsafe { lambert_exit_on_cuda_error(code) };
}

/// Makes libtorch use deterministic algorithms on GPUs, process-wide. Call it before the first GPU operation.
pub fn use_deterministic_algorithms() {
    // SAFETY: the function only sets flags.
    check(unsafe { lambert_use_deterministic_algorithms(failed) });
}

/// Allows TF32 in f32 matrix products on GPUs, process-wide.
pub fn allow_tf32(allowed: bool) {
    // SAFETY: the function only sets a flag.
    check(unsafe { lambert_allow_tf32(allowed, failed) });
}

/// Disables cuDNN in fused attention, process-wide.
pub fn disable_cudnn_attention() {
    // SAFETY: the function only sets a flag.
    check(unsafe { lambert_disable_cudnn_attention(failed) });
}

/// Seeds the libtorch generator of GPU `index`.
pub fn seed(index: usize, seed: u64) {
    // SAFETY: the arguments are numbers.
    check(unsafe { lambert_seed_gpu(index as i32, seed, failed) });
}

/// Returns the CUDA stream of GPU `index` on which this thread runs operations.
///
/// # Errors
/// libtorch does not know the GPU.
pub fn current_stream(index: usize) -> Result<*mut c_void, String> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer lives for the call.
    match unsafe { lambert_current_stream(index as i32, &raw mut stream, failed) } {
        0 => Ok(stream),
        _ => Err(LAST_ERROR_TEXT.with(RefCell::take)),
    }
}

/// Peak memory of the tensors of this process on GPU `index`, bytes.
///
/// # Errors
/// libtorch does not know the GPU.
pub fn peak_memory(index: usize) -> Result<u64, String> {
    let mut bytes = 0;
    // SAFETY: the integer lives for the call.
    match unsafe { lambert_peak_memory(index as i32, &raw mut bytes, failed) } {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(LAST_ERROR_TEXT.with(RefCell::take)),
    }
}

/// Makes the memory of the tensors that are now on GPU `index` their peak.
///
/// # Errors
/// libtorch does not know the GPU.
pub fn reset_peak_memory(index: usize) -> Result<(), String> {
    // SAFETY: the function has no precondition.
    match unsafe { lambert_reset_peak_memory(index as i32, failed) } {
        0 => Ok(()),
        _ => Err(LAST_ERROR_TEXT.with(RefCell::take)),
    }
}

/// GPU stream for asynchronous copies beside the compute stream. The compute stream is the current stream of the
/// calling thread. The functions panic, as in tch, if libtorch fails.
pub struct CopyStream(*mut c_void);

// SAFETY: any thread may use streams and events. `upload` and `join` modify the stream, so only one thread at a time
// may call them. The owner guards the stream with a lock.
unsafe impl Send for CopyStream {}

impl CopyStream {
    /// Creates a copy stream on GPU `index`.
    pub fn new(index: usize) -> Self {
        // SAFETY: the argument is a number.
        let stream = unsafe { lambert_copy_stream(index as i32, failed) };
        assert!(!stream.is_null(), "{}", LAST_ERROR_TEXT.with(RefCell::take));
        Self(stream)
    }

    /// Uploads `host` asynchronously. The compute stream may use the copy after [`CopyStream::join`].
    pub fn upload(&self, host: &Tensor) -> Tensor {
        // SAFETY: `self.0` is a copy stream. `host` is a live at::Tensor, whose content is
        // copied before the function returns.
        made(|failed| unsafe { lambert_copy_stream_upload(self.0, host.as_ptr(), failed) })
    }

    /// Starts to copy `from` to the host tensor `to`, after the work that is already enqueued on the compute stream.
    ///
    /// # Safety
    /// The memory of `to` and `from` must stay valid until [`CopyStream::is_done`] returns true. Until then,
    /// the memory of `to` must not be accessed.
    pub unsafe fn download(&self, to: &Tensor, from: &Tensor) {
        // SAFETY: `self.0` is a copy stream, and `to` and `from` are live at::Tensor
        // objects. The caller guarantees their memory.
        check(unsafe { lambert_copy_stream_download(self.0, to.as_ptr(), from.as_ptr(), failed) });
    }

    /// Makes later work on the compute stream wait for all copies so far.
    pub fn join(&self) {
        // SAFETY: `self.0` is a copy stream.
        check(unsafe { lambert_copy_stream_join(self.0, failed) });
    }

    /// True if all copies are complete.
    pub fn is_done(&self) -> bool {
        // SAFETY: `self.0` is a copy stream.
        check(unsafe { lambert_copy_stream_is_done(self.0, failed) }) == 1
    }

    /// Waits for all copies.
    pub fn wait(&self) {
        // SAFETY: `self.0` is a copy stream.
        check(unsafe { lambert_copy_stream_wait(self.0, failed) });
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: lambert_copy_stream created the stream, and the stream is deleted once.
        unsafe { lambert_copy_stream_delete(self.0) }
    }
}

/// Time at which a GPU completes the work of its current stream. The functions panic, as in tch, if libtorch fails.
pub struct TimeEvent(*mut c_void);

// SAFETY: any thread may use an event.
unsafe impl Send for TimeEvent {}

impl TimeEvent {
    /// Records an event on the current stream of GPU `index`.
    pub fn record(index: usize) -> Self {
        // SAFETY: the argument is a number.
        let event = unsafe { lambert_time_event(index as i32, failed) };
        assert!(!event.is_null(), "{}", LAST_ERROR_TEXT.with(RefCell::take));
        Self(event)
    }

    /// Waits for both events and returns the seconds since `earlier`, an event of the same GPU.
    pub fn seconds_since(&self, earlier: &Self) -> f64 {
        let mut milliseconds = 0.0;
        // SAFETY: both are events, and the number lives for the call.
        check(unsafe { lambert_time_between(earlier.0, self.0, &raw mut milliseconds, failed) });
        1e-3 * milliseconds
    }
}

impl Drop for TimeEvent {
    fn drop(&mut self) {
        // SAFETY: lambert_time_event created the event, and the event is deleted once.
        unsafe { lambert_time_event_delete(self.0) }
    }
}
