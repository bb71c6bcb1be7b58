use std::fmt;

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Main memory.
    Host,
    /// The device of this number, as its driver counts.
    Device(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("main memory"),
            Self::Device(number) => write!(f, "the memory of device {number}"),
        }
    }
}

/// A range of a buffer of gradients, f32, as raw memory: this crate knows no tensors, and a device's memory has no
/// slices.
#[derive(Debug)]
pub struct Bucket {
    first: *mut f32,
    count: usize,
    place: Place,
}

// SAFETY: whoever made it promised that nothing else touches the memory, so any thread may.
unsafe impl Send for Bucket {}

impl Bucket {
    /// `count` values in main memory from `first` on.
    ///
    /// # Safety
    /// The values may be read and written, and nothing else reads or writes them, until the [`Pending`](crate::Pending)
    /// of this bucket was awaited or dropped.
    pub unsafe fn host(first: *mut f32, count: usize) -> Self {
        Self { first, count, place: Place::Host }
    }

    /// `count` values in the memory of device `number` from `first` on, an address of that device.
    ///
    /// # Safety
    /// As for [`Bucket::host`]; work that the device was given before and that writes there has been ordered before.
    pub unsafe fn device(first: *mut f32, count: usize, number: usize) -> Self {
        Self { first, count, place: Place::Device(number) }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Address of the first value, in [`Bucket::place`].
    pub fn first(&self) -> *mut f32 {
        self.first
    }

    /// The values, if they are in main memory.
    pub fn values(&mut self) -> Option<&mut [f32]> {
        match self.place {
            _ if self.count == 0 => Some(&mut []),
            // SAFETY: promised where it was made; the borrow of `self` keeps this the only slice.
            Place::Host => Some(unsafe { std::slice::from_raw_parts_mut(self.first, self.count) }),
            Place::Device(_) => None,
        }
    }
}
