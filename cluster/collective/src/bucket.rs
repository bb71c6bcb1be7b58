use std::fmt;

/// Memory that contains a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLocation {
    /// Host memory.
    Host,
    /// Memory of the GPU with this device ordinal.
    Device(usize),
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Device(ordinal) => write!(f, "the memory of device {ordinal}"),
        }
    }
}

/// Contiguous range of f32 gradients in host or device memory. A bucket is a raw pointer and a length. (This crate has
/// no tensors, and Rust slices cannot refer to device memory.)
#[derive(Debug)]
pub struct Bucket {
    pointer: *mut f32,
    count: usize,
    location: MemoryLocation,
}

// SAFETY: the creator promised exclusive access to the memory, so any thread may use it.
unsafe impl Send for Bucket {}

impl Bucket {
    /// Creates a bucket of `count` values in host memory, starting at `pointer`.
    ///
    /// # Safety
    /// The values must be valid for reads and writes, and nothing else may access them. This applies until the
    /// [`PendingAllReduce`](crate::PendingAllReduce) of this bucket has been waited for or dropped.
    pub unsafe fn host(pointer: *mut f32, count: usize) -> Self {
        Self { pointer, count, location: MemoryLocation::Host }
    }

    /// Creates a bucket of `count` values in the memory of device `ordinal`, starting at the device address `pointer`.
    ///
    /// # Safety
    /// As for [`Bucket::host`]. All work that writes the values must already be enqueued on the compute stream of the
    /// device.
    pub unsafe fn device(pointer: *mut f32, count: usize, ordinal: usize) -> Self {
        Self { pointer, count, location: MemoryLocation::Device(ordinal) }
    }

    /// Memory that contains the bucket.
    pub fn location(&self) -> MemoryLocation {
        self.location
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Address of the first value, in [`Bucket::location`].
    pub fn as_mut_ptr(&self) -> *mut f32 {
        self.pointer
    }

    /// Returns the values if they are in host memory.
    pub fn as_host_slice(&mut self) -> Option<&mut [f32]> {
        match self.location {
            _ if self.count == 0 => Some(&mut []),
            // SAFETY: the creator promised valid memory; the borrow of `self` makes this the only slice.
            MemoryLocation::Host => Some(unsafe { std::slice::from_raw_parts_mut(self.pointer, self.count) }),
            MemoryLocation::Device(_) => None,
        }
    }
}
