//! Copies out of a device's memory that go on beside its computing: what a checkpoint is written from.

use std::ops::Range;

use tch::Tensor;

use super::Kernels;

/// Main memory that copies go to.
pub struct Memory {
    /// What makes copies to it quick, undone before the bytes go.
    pin: Option<Box<dyn Send + Sync>>,
    bytes: Vec<u8>,
}

impl Memory {
    /// Memory like any other.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { pin: None, bytes }
    }

    /// Memory that stays where it is as long as `pin` lives.
    pub fn pinned(bytes: Vec<u8>, pin: Box<dyn Send + Sync>) -> Self {
        Self { pin: Some(pin), bytes }
    }

    /// Whether a device copies to it without a detour.
    pub fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, to be written; their number stays.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// Bytes of a contiguous tensor, and where they go.
pub struct Copy {
    /// The tensor, kept until the copy has been made.
    pub tensor: Tensor,
    /// Its first byte that is copied.
    pub first: usize,
    /// Bytes of the memory that it is copied to.
    pub to: Range<usize>,
}

/// Copies under way; dropped, they are waited for.
pub trait Copies: Send {
    /// Whether they have all been made.
    fn are_done(&self) -> bool;

    /// The memory that they went to, once they have all been made.
    fn wait(self: Box<Self>) -> Memory;
}

/// Copies that have been made.
pub struct Done(Memory);

impl Done {
    /// Makes them.
    pub fn make(kernels: &(impl Kernels + ?Sized), copies: &[Copy], mut memory: Memory) -> Self {
        for Copy { tensor, first, to } in copies {
            kernels.read(tensor, *first, &mut memory.bytes_mut()[to.clone()]);
        }
        Self(memory)
    }
}

impl Copies for Done {
    fn are_done(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Memory {
        self.0
    }
}
