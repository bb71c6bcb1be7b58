//! GPU functions of libtorch: random generator, streams, memory statistics.

use std::cell::RefCell;
use std::ffi::c_void;

use tch::Tensor;

use super::{Failed, LAST_ERROR_TEXT, failed, made};

unsafe extern "C" {
    fn lambert_use_deterministic_algorithms(failed: Failed) -> i32;
    fn lambert_allow_tf32(allowed: bool, failed: Failed) -> i32;
    fn lambert_disable_cudnn_attention(failed: Failed) -> i32;
    fn lambert_seed_gpu(index: i32, seed: u64, failed: Failed) -> i32;
    fn lambert_current_stream(index: i32, stream: *mut *mut c_void, failed: Failed) -> i32;
    fn lambert_peak_memory(index: i32, bytes: *mut i64, failed: Failed) -> i32;
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
}

/// Panics like tch if libtorch reported a failure.
fn check(code: i32) -> i32 {
    assert!(code >= 0, "{}", LAST_ERROR_TEXT.with(RefCell::take));
    code
}

/// Makes libtorch use deterministic algorithms on GPUs, process-wide. Call it before the first GPU operation.
pub fn use_deterministic_algorithms() {
    // SAFETY: sets flags.
    check(unsafe { lambert_use_deterministic_algorithms(failed) });
}

/// Allows TF32 in f32 matrix products on GPUs, process-wide.
pub fn allow_tf32(allowed: bool) {
    // SAFETY: sets a flag.
    check(unsafe { lambert_allow_tf32(allowed, failed) });
}

/// Disables cuDNN in fused attention, process-wide.
pub fn disable_cudnn_attention() {
    // SAFETY: sets a flag.
    check(unsafe { lambert_disable_cudnn_attention(failed) });
}

/// Seeds libtorch's generator of GPU `index`.
pub fn seed(index: usize, seed: u64) {
    // SAFETY: numbers only.
    check(unsafe { lambert_seed_gpu(index as i32, seed, failed) });
}

/// Returns the CUDA stream of GPU `index` that this thread's operations run on.
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

/// Peak memory of this process's tensors on GPU `index`, bytes.
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

/// A GPU stream for asynchronous copies beside the compute stream, which is the calling thread's current stream. Its
/// functions panic like tch if libtorch fails.
pub struct CopyStream(*mut c_void);

// SAFETY: streams and events may be used by any thread, and `upload` and `join`, which modify the stream, by one at a time: that is
// up to the owner, who has them behind a lock.
unsafe impl Send for CopyStream {}

impl CopyStream {
    /// Creates a copy stream on GPU `index`.
    pub fn new(index: usize) -> Self {
        // SAFETY: a number only.
        let stream = unsafe { lambert_copy_stream(index as i32, failed) };
        assert!(!stream.is_null(), "{}", LAST_ERROR_TEXT.with(RefCell::take));
        Self(stream)
    }

    /// Uploads `host` asynchronously. The compute stream may use the copy after [`CopyStream::join`].
    pub fn upload(&self, host: &Tensor) -> Tensor {
        // SAFETY: a copy stream and a live at::Tensor, whose content is copied before this returns.
        made(|failed| unsafe { lambert_copy_stream_upload(self.0, host.as_ptr(), failed) })
    }

    /// Starts to copy `from` to the host tensor `to`, after the work enqueued so far on the compute stream.
    ///
    /// # Safety
    /// The memory of both must stay valid, and that of `to` untouched, until [`CopyStream::is_done`].
    pub unsafe fn download(&self, to: &Tensor, from: &Tensor) {
        // SAFETY: a copy stream and live at::Tensor objects; the caller sees to their memory.
        check(unsafe { lambert_copy_stream_download(self.0, to.as_ptr(), from.as_ptr(), failed) });
    }

    /// Makes later work on the compute stream wait for all copies so far.
    pub fn join(&self) {
        // SAFETY: a copy stream.
        check(unsafe { lambert_copy_stream_join(self.0, failed) });
    }

    /// True if all copies are complete.
    pub fn is_done(&self) -> bool {
        // SAFETY: a copy stream.
        check(unsafe { lambert_copy_stream_is_done(self.0, failed) }) == 1
    }

    /// Waits for all copies.
    pub fn wait(&self) {
        // SAFETY: a copy stream.
        check(unsafe { lambert_copy_stream_wait(self.0, failed) });
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: made by lambert_copy_stream, and forgotten once.
        unsafe { lambert_copy_stream_delete(self.0) }
    }
}
