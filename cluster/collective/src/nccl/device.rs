use std::ffi::c_void;

use crate::Result;

/// Interface of the NCCL backend to a GPU with two streams. The caller enqueues its work on the compute stream. The
/// backend enqueues its work on the communication stream.
///
/// # Safety
/// [`NcclDevice::comm_stream`] is a stream of the device and lives as long as the value. The buffer that
/// [`NcclDevice::cast_to_bf16`] returns has room for the requested number of bf16 values. It stays valid until the
/// communication stream has completed the next [`NcclDevice::cast_from_bf16`].
pub unsafe trait NcclDevice: Send + Sync {
    /// Event recorded on a stream.
    type StreamEvent: Send;

    /// Device ordinal.
    fn ordinal(&self) -> usize;

    /// Makes the device current for the calling thread.
    ///
    /// # Errors
    /// Errors of the driver.
    fn make_current(&self) -> Result<()>;

    /// Handle of the communication stream (`cudaStream_t`).
    fn comm_stream(&self) -> *mut c_void;

    /// Records an event on the compute stream.
    ///
    /// # Errors
    /// Errors of the driver.
    fn record_compute_event(&self) -> Result<Self::StreamEvent>;

    /// Records an event on the communication stream.
    ///
    /// # Errors
    /// Errors of the driver.
    fn record_comm_event(&self) -> Result<Self::StreamEvent>;

    /// Makes later work on the communication stream wait for `event`.
    ///
    /// # Errors
    /// Errors of the driver.
    fn wait_event(&self, event: &Self::StreamEvent) -> Result<()>;

    /// True if all work before `event` has completed.
    ///
    /// # Errors
    /// Errors of the driver, or of the work itself.
    fn is_complete(&self, event: &Self::StreamEvent) -> Result<bool>;

    /// Enqueues work on the communication stream that rounds `count` f32 values at address `from` to bf16 (to nearest,
    /// ties to even). Returns the address of the bf16 values.
    ///
    /// # Errors
    /// Errors of the driver.
    fn cast_to_bf16(&self, from: u64, count: usize) -> Result<u64>;

    /// Enqueues work on the communication stream that converts the bf16 values of the last [`NcclDevice::cast_to_bf16`]
    /// to f32 and writes them to address `to`.
    ///
    /// # Errors
    /// Errors of the driver.
    fn cast_from_bf16(&self, to: u64, count: usize) -> Result<()>;
}
