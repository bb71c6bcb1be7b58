//! Kernels on a processor: kernels.cu as C++, the threads of a block as fibres whose order a seed draws.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use tch::{Device, Kind, Tensor};

use super::launch::{Arguments, Card, THREADS};
use crate::kernels::{Host, Kernels};

unsafe extern "C" {
    fn lambert_emulate(
        kernel: *const c_char,
        blocks: u32,
        threads: u32,
        arguments: *mut *mut c_void,
        seed: u64,
    ) -> *const c_char;
}

/// Runs kernels on tensors in main memory.
#[derive(Debug, Default)]
pub struct Emulator {
    launches: AtomicU64,
}

impl Card for Emulator {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, Device::Cpu))
    }

    fn place(&self, host: Tensor) -> Tensor {
        host
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(numbers)
    }

    fn seed(&self, seed: u64) {
        Host.seed(seed);
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut Arguments) -> Result<(), String> {
        let name = CString::new(kernel).map_err(|error| error.to_string())?;
        let seed = self.launches.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
        // SAFETY: the emulator reads as many arguments as the kernel of this name has, which point to tensors that live for
        // the call.
        let said = unsafe {
            let pointers = arguments.pointers().as_mut_ptr();
            lambert_emulate(name.as_ptr(), blocks as u32, THREADS as u32, pointers, seed)
        };
        match said.is_null() {
            true => Ok(()),
            // SAFETY: a string with its end, which lives until this thread's next call.
            false => Err(unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()),
        }
    }
}
