//! A card of NVIDIA's, as the kernels see it.

use tch::{Device, Kind, Tensor};

use super::driver::{Driver, DriverError, Loaded};
use crate::kernels::cuda::KERNELS;
use crate::kernels::cuda::launch::{Arguments, Card, THREADS};
use crate::kernels::{Host, Kernels};
use crate::torch;

/// A card and its kernels.
pub struct Gpu {
    index: usize,
    loaded: Loaded,
}

impl Gpu {
    /// Card `index`, with the kernels in `code`, a cubin.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(driver: Driver, index: usize, code: &[u8]) -> Result<Self, DriverError> {
        Ok(Self { index, loaded: driver.load(index, code, &KERNELS)? })
    }

    fn device(&self) -> Device {
        Device::Cuda(self.index)
    }
}

impl Card for Gpu {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, self.device()))
    }

    fn place(&self, host: Tensor) -> Tensor {
        // Out of pinned memory, which libtorch keeps until the copy has been made.
        let kind = host.kind();
        host.pin_memory(self.device()).to_device_(self.device(), kind, true, false)
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(&numbers.to_device(Device::Cpu))
    }

    fn seed(&self, seed: u64) {
        torch::seed_card(self.index, seed);
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut Arguments) -> Result<(), String> {
        let stream = torch::current_stream(self.index)?;
        // SAFETY: src/kernels/cuda passes what kernels.cu has; the tests run the same calls by the emulator.
        let launched = unsafe { self.loaded.launch(kernel, blocks, THREADS, stream, arguments.pointers()) };
        launched.map_err(|error| error.to_string())
    }
}
