//! What of a card's is reached through libtorch: its generator, its streams.

use std::cell::RefCell;
use std::ffi::c_void;

use tch::Tensor;

use super::{Failed, SAID, failed, made};

unsafe extern "C" {
    fn lambert_add_in_one_order(failed: Failed) -> i32;
    fn lambert_allow_tf32(allowed: bool, failed: Failed) -> i32;
    fn lambert_leave_out_cudnn(failed: Failed) -> i32;
    fn lambert_seed_card(index: i32, seed: u64, failed: Failed) -> i32;
    fn lambert_current_stream(index: i32, stream: *mut *mut c_void, failed: Failed) -> i32;
    fn lambert_peak_memory(index: i32, bytes: *mut i64, failed: Failed) -> i32;
    fn lambert_lane(index: i32, failed: Failed) -> *mut c_void;
    fn lambert_lane_forget(lane: *mut c_void);
    fn lambert_lane_send(
        lane: *mut c_void,
        host: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
    fn lambert_lane_take(
        lane: *mut c_void,
        to: *const torch_sys::C_tensor,
        from: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> i32;
    fn lambert_lane_order(lane: *mut c_void, failed: Failed) -> i32;
    fn lambert_lane_is_done(lane: *const c_void, failed: Failed) -> i32;
    fn lambert_lane_wait(lane: *const c_void, failed: Failed) -> i32;
}

/// Panics like tch where libtorch has refused.
fn check(code: i32) -> i32 {
    assert!(code >= 0, "{}", SAID.with(RefCell::take));
    code
}

/// Lets libtorch's operations on cards add up in one order, from here on, in the whole process. To be called before the first of
/// them.
pub fn add_in_one_order() {
    // SAFETY: sets flags.
    check(unsafe { lambert_add_in_one_order(failed) });
}

/// Whether matrix products of 32 bits on cards may read 19 of them, in the whole process.
pub fn allow_tf32(allowed: bool) {
    // SAFETY: sets a flag.
    check(unsafe { lambert_allow_tf32(allowed, failed) });
}

/// Leaves cuDNN out of fused attention, in the whole process.
pub fn leave_out_cudnn() {
    // SAFETY: sets a flag.
    check(unsafe { lambert_leave_out_cudnn(failed) });
}

/// Seeds libtorch's own generator for card `index`.
pub fn seed(index: usize, seed: u64) {
    // SAFETY: numbers only.
    check(unsafe { lambert_seed_card(index as i32, seed, failed) });
}

/// The stream of card `index` that this thread's operations go to, as CUDA knows it.
///
/// # Errors
/// libtorch knows no such card.
pub fn current_stream(index: usize) -> Result<*mut c_void, String> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer lives for the call.
    match unsafe { lambert_current_stream(index as i32, &raw mut stream, failed) } {
        0 => Ok(stream),
        _ => Err(SAID.with(RefCell::take)),
    }
}

/// The most bytes of card `index` that this process's tensors have had at a time.
///
/// # Errors
/// libtorch knows no such card.
pub fn peak_memory(index: usize) -> Result<u64, String> {
    let mut bytes = 0;
    // SAFETY: the integer lives for the call.
    match unsafe { lambert_peak_memory(index as i32, &raw mut bytes, failed) } {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(SAID.with(RefCell::take)),
    }
}

/// A stream of a card beside the one that computes, for copies. Its functions panic like tch where libtorch refuses; "the
/// computing stream" is the calling thread's.
pub struct Lane(*mut c_void);

// SAFETY: streams and events may be used by any thread, and `send` and `order`, which change the lane, by one at a time: that is
// up to the owner, who has them behind a lock.
unsafe impl Send for Lane {}

impl Lane {
    /// One of card `index`.
    pub fn new(index: usize) -> Self {
        // SAFETY: a number only.
        let lane = unsafe { lambert_lane(index as i32, failed) };
        assert!(!lane.is_null(), "{}", SAID.with(RefCell::take));
        Self(lane)
    }

    /// A copy of `host` on the card, made as soon as the lane is free. It is there for what the computing stream is given after
    /// [`Lane::order`].
    pub fn send(&self, host: &Tensor) -> Tensor {
        // SAFETY: a lane and a live at::Tensor, whose content is copied before this returns.
        made(|failed| unsafe { lambert_lane_send(self.0, host.as_ptr(), failed) })
    }

    /// Begins to copy `from` to `to`, in main memory, as it is when the computing stream has done what it was given so far.
    ///
    /// # Safety
    /// The memory of both stays until [`Lane::is_done`], and nobody touches that of `to`.
    pub unsafe fn take(&self, to: &Tensor, from: &Tensor) {
        // SAFETY: a lane and live at::Tensor objects; the caller sees to their memory.
        check(unsafe { lambert_lane_take(self.0, to.as_ptr(), from.as_ptr(), failed) });
    }

    /// Lets what the computing stream is given from here on wait for all copies so far.
    pub fn order(&self) {
        // SAFETY: a lane.
        check(unsafe { lambert_lane_order(self.0, failed) });
    }

    /// Whether all copies have been made.
    pub fn is_done(&self) -> bool {
        // SAFETY: a lane.
        check(unsafe { lambert_lane_is_done(self.0, failed) }) == 1
    }

    /// Waits until all copies have been made.
    pub fn wait(&self) {
        // SAFETY: a lane.
        check(unsafe { lambert_lane_wait(self.0, failed) });
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: made by lambert_lane, and forgotten once.
        unsafe { lambert_lane_forget(self.0) }
    }
}
