//! Asynchronous copies from device to host memory, used to write checkpoints while training continues.

use std::ops::Range;

use tch::Tensor;

use super::Kernels;

/// Host memory that device tensors are copied to.
pub struct HostBuffer {
    /// Page-lock registration. The field is declared before `bytes`, so that it is dropped first.
    pin: Option<Box<dyn Send + Sync>>,
    bytes: Vec<u8>,
}

impl HostBuffer {
    /// Creates a pageable buffer.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { pin: None, bytes }
    }

    /// Creates a page-locked buffer. Dropping `pin` unlocks its pages.
    pub fn pinned(bytes: Vec<u8>, pin: Box<dyn Send + Sync>) -> Self {
        Self { pin: Some(pin), bytes }
    }

    /// True if the memory is page-locked. A device can copy to page-locked memory directly.
    pub fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// Contents.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Mutable contents, of fixed length.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// Byte range of a contiguous tensor and its destination in a [`HostBuffer`].
pub struct TensorCopy {
    /// Source tensor, which is kept alive until the copy completes.
    pub tensor: Tensor,
    /// First byte of the source range.
    pub src_offset: usize,
    /// Destination bytes in the buffer.
    pub dst_range: Range<usize>,
}

/// Pending copies. Dropping this value waits for them.
pub trait PendingSnapshot: Send {
    /// True if all copies are complete.
    fn is_complete(&self) -> bool;

    /// Waits for all copies and returns the buffer.
    fn wait(self: Box<Self>) -> HostBuffer;
}

/// A snapshot whose copies are complete.
pub struct CompletedSnapshot(HostBuffer);

impl CompletedSnapshot {
    /// Copies synchronously.
    pub fn copy(kernels: &(impl Kernels + ?Sized), copies: &[TensorCopy], mut buffer: HostBuffer) -> Self {
        for TensorCopy { tensor, src_offset, dst_range } in copies {
            kernels.read(tensor, *src_offset, &mut buffer.bytes_mut()[dst_range.clone()]);
        }
        Self(buffer)
    }
}

impl PendingSnapshot for CompletedSnapshot {
    fn is_complete(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> HostBuffer {
        self.0
    }
}
