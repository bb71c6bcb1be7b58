//! Kernel launches, independent of the device that runs them.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use crate::kernels::{HostBuffer, PendingSnapshot, TensorCopy, TimeMark};

/// Threads per block. Must equal `THREADS` in kernels.cu.
pub const THREADS: usize = 256;

/// Device that runs the kernels of kernels.cu in call order. The device is a GPU or the emulator.
pub trait KernelDevice: Send + Sync {
    /// CUDA device index, if the device has its own memory.
    fn device_index(&self) -> Option<usize> {
        None
    }

    /// Implements [`Kernels::has_unpadded_attention`](crate::kernels::Kernels::has_unpadded_attention).
    fn has_unpadded_attention(&self) -> bool {
        false
    }

    /// Allocates f32 zeros in host memory. The memory is pinned if the device supports pinned memory.
    fn pinned_zeros(&self, elements: usize) -> Tensor {
        Tensor::zeros([elements as i64], (Kind::Float, Device::Cpu))
    }

    /// Allocates a tensor of zeros on the device.
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor;

    /// Copies a host tensor to the device, in order with the other calls. The copy may be asynchronous.
    fn to_device(&self, host: Tensor) -> Tensor;

    /// Implements [`Kernels::upload_async`](crate::kernels::Kernels::upload_async).
    fn to_device_async(&self, host: Tensor) -> Tensor {
        self.to_device(host)
    }

    /// Implements [`Kernels::wait_uploads`](crate::kernels::Kernels::wait_uploads).
    fn wait_uploads(&self) {}

    /// Implements [`Kernels::host_buffer`](crate::kernels::Kernels::host_buffer).
    fn host_buffer(&self, bytes: Vec<u8>) -> HostBuffer {
        HostBuffer::new(bytes)
    }

    /// Implements [`Kernels::start_snapshot`](crate::kernels::Kernels::start_snapshot).
    fn start_snapshot(&self, copies: Vec<TensorCopy>, into: HostBuffer) -> Box<dyn PendingSnapshot>;

    /// Implements [`Kernels::wait_snapshots`](crate::kernels::Kernels::wait_snapshots).
    fn wait_snapshots(&self) {}

    /// Implements [`Kernels::fetch`](crate::kernels::Kernels::fetch).
    fn fetch(&self, numbers: &Tensor) -> Vec<f64>;

    /// Implements [`Kernels::mark_time`](crate::kernels::Kernels::mark_time).
    fn mark_time(&self) -> TimeMark {
        TimeMark::now()
    }

    /// Implements [`Kernels::peak_memory`](crate::kernels::Kernels::peak_memory).
    fn peak_memory(&self) -> Option<u64> {
        None
    }

    /// Implements [`Kernels::reset_peak_memory`](crate::kernels::Kernels::reset_peak_memory).
    fn reset_peak_memory(&self) {}

    /// Implements [`Kernels::seed`](crate::kernels::Kernels::seed).
    fn seed(&self, seed: u64);

    /// Launches kernel `lambert_NAME` with `blocks` blocks of [`THREADS`] threads. The kernel reads and writes the
    /// memory that the arguments point to.
    ///
    /// # Errors
    /// The device rejects the launch.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut KernelArguments) -> Result<(), String>;
}

/// Returns the address of an element of a contiguous f32 tensor.
pub fn address(tensor: &Tensor, element: usize) -> Option<NonNull<f32>> {
    assert!(tensor.is_contiguous() && tensor.kind() == Kind::Float, "expected a contiguous f32 tensor, got {tensor:?}");
    assert!(element < tensor.numel(), "element {element} is out of range for a tensor of {}", tensor.numel());
    NonNull::new(tensor.data_ptr().cast::<f32>().wrapping_add(element))
}

/// Argument list of a kernel launch, in parameter order.
#[derive(Debug, Default)]
pub struct KernelArguments {
    /// Argument values, each in the low bytes of a word.
    words: Vec<u64>,
    /// Size in bytes of the tensor that each argument points to; 0 for values.
    sizes: Vec<usize>,
    pointers: Vec<*mut c_void>,
}

impl KernelArguments {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a pointer to the elements of a contiguous tensor. The tensor must stay alive until the kernel completes.
    /// The libtorch caching allocator ensures this for work on the stream of the tensor.
    pub fn tensor(mut self, tensor: &Tensor) -> Self {
        assert!(tensor.is_contiguous(), "kernel argument is not contiguous: {tensor:?}");
        self.words.push(tensor.data_ptr() as u64);
        self.sizes.push(tensor.numel() * tensor.kind().elt_size_in_bytes());
        self
    }

    /// Appends a pointer to a tensor, or a null pointer.
    pub fn optional_tensor(self, tensor: Option<&Tensor>) -> Self {
        match tensor {
            Some(tensor) => self.tensor(tensor),
            None => self.u64(0),
        }
    }

    /// Appends a `u64`.
    pub fn u64(mut self, value: u64) -> Self {
        self.words.push(value);
        self.sizes.push(0);
        self
    }

    /// Appends a `u32`.
    pub fn u32(self, value: usize) -> Self {
        let value = u32::try_from(value).expect("kernel argument exceeds u32");
        self.u64(u64::from(value))
    }

    /// Appends a `float`.
    pub fn f32(self, value: f32) -> Self {
        self.u64(u64::from(value.to_bits()))
    }

    /// Appends a `double`.
    pub fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }

    /// Returns the value of a non-pointer argument.
    #[cfg(test)]
    pub fn number(&self, index: usize) -> usize {
        self.words[index] as usize
    }

    /// Size in bytes of the tensor that an argument points to; 0 for null pointers and values.
    #[cfg(test)]
    pub fn size(&self, index: usize) -> usize {
        self.sizes[index]
    }

    /// Pointers to the arguments, in the form that `cuLaunchKernel` expects. The pointers are
    /// valid until the list is changed or moved.
    pub fn pointers(&mut self) -> &mut [*mut c_void] {
        self.pointers = self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast::<c_void>()).collect();
        &mut self.pointers
    }
}
