//! Calls of a kernel, whoever runs it.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use crate::kernels::{Copies, Copy, Memory};

/// Threads of every block; kernels.cu has the same number.
pub const THREADS: usize = 256;

/// Memory, and what runs the kernels of kernels.cu on it, in the order of the calls.
pub trait Card: Send + Sync {
    /// Its number, as the driver counts, where it has memory of its own.
    fn number(&self) -> Option<usize> {
        None
    }

    /// So many f32 in main memory, to which the card copies as quickly as it can.
    fn host_memory(&self, elements: usize) -> Tensor {
        Tensor::zeros([elements as i64], (Kind::Float, Device::Cpu))
    }

    /// Zeros of `kind` on the card.
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor;

    /// A copy of a tensor in main memory on the card. It may be made later, in the order of the calls.
    fn place(&self, host: Tensor) -> Tensor;

    /// As [`Kernels::send`](crate::kernels::Kernels::send).
    fn send(&self, host: Tensor) -> Tensor {
        self.place(host)
    }

    /// As [`Kernels::order_sent`](crate::kernels::Kernels::order_sent).
    fn order_sent(&self) {}

    /// As [`Kernels::memory`](crate::kernels::Kernels::memory).
    fn memory(&self, bytes: Vec<u8>) -> Memory {
        Memory::new(bytes)
    }

    /// As [`Kernels::begin_copies`](crate::kernels::Kernels::begin_copies).
    fn begin_copies(&self, copies: Vec<Copy>, into: Memory) -> Box<dyn Copies>;

    /// As [`Kernels::order_copies`](crate::kernels::Kernels::order_copies).
    fn order_copies(&self) {}

    /// As [`Kernels::fetch`](crate::kernels::Kernels::fetch).
    fn fetch(&self, numbers: &Tensor) -> Vec<f64>;

    /// As [`Kernels::peak_memory`](crate::kernels::Kernels::peak_memory).
    fn peak_memory(&self) -> Option<u64> {
        None
    }

    /// As [`Kernels::seed`](crate::kernels::Kernels::seed).
    fn seed(&self, seed: u64);

    /// Starts `blocks` blocks of [`THREADS`] threads of the kernel `lambert_NAME`, which reads and writes memory that the
    /// arguments point to.
    ///
    /// # Errors
    /// The card refuses it.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut Arguments) -> Result<(), String>;
}

/// Where an element of a contiguous f32 tensor lies in its memory.
pub fn address(tensor: &Tensor, element: usize) -> Option<NonNull<f32>> {
    assert!(tensor.is_contiguous() && tensor.kind() == Kind::Float, "the address of an element of {tensor:?}");
    assert!(element < tensor.numel(), "element {element} of {}", tensor.numel());
    NonNull::new(tensor.data_ptr().cast::<f32>().wrapping_add(element))
}

/// What a kernel is called with, one after the other, as its parameters have them.
#[derive(Debug, Default)]
pub struct Arguments {
    /// Each in the first bytes of a word.
    words: Vec<u64>,
    /// Bytes behind each that is a pointer; 0 behind the others.
    sizes: Vec<usize>,
    pointers: Vec<*mut c_void>,
}

impl Arguments {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A pointer to the elements of a contiguous tensor, which has to live until the device has done its work (libtorch's
    /// allocators see to that for work on the stream that the tensor was made for).
    pub fn tensor(mut self, tensor: &Tensor) -> Self {
        assert!(tensor.is_contiguous(), "a kernel's tensors are contiguous");
        self.words.push(tensor.data_ptr() as u64);
        self.sizes.push(tensor.numel() * tensor.kind().elt_size_in_bytes());
        self
    }

    /// The same, or a null pointer.
    pub fn some(self, tensor: Option<&Tensor>) -> Self {
        match tensor {
            Some(tensor) => self.tensor(tensor),
            None => self.u64(0),
        }
    }

    /// A `u64`.
    pub fn u64(mut self, value: u64) -> Self {
        self.words.push(value);
        self.sizes.push(0);
        self
    }

    /// A `u32`.
    pub fn u32(self, value: usize) -> Self {
        let value = u32::try_from(value).expect("a kernel's u32 is below 2^32");
        self.u64(u64::from(value))
    }

    /// A `float`.
    pub fn f32(self, value: f32) -> Self {
        self.u64(u64::from(value.to_bits()))
    }

    /// A `double`.
    pub fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }

    /// An argument that is no pointer.
    #[cfg(test)]
    pub fn number(&self, place: usize) -> usize {
        self.words[place] as usize
    }

    /// Bytes of the tensor that an argument points to; 0 for a null pointer or a number.
    #[cfg(test)]
    pub fn size(&self, place: usize) -> usize {
        self.sizes[place]
    }

    /// Pointers to the arguments, as `cuLaunchKernel` wants them; they are good until the next call.
    pub fn pointers(&mut self) -> &mut [*mut c_void] {
        self.pointers = self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast::<c_void>()).collect();
        &mut self.pointers
    }
}
