//! Kernels on a processor: kernels.cu as C++, the threads of a block as fibres whose order a seed draws.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tch::{Device, Kind, Tensor};

use super::launch::{Arguments, Card, THREADS};
use crate::kernels::{Copies, Copy, Host, Kernels, Memory, copies};

unsafe extern "C" {
    fn lambert_emulate(
        kernel: *const c_char,
        blocks: u32,
        threads: u32,
        arguments: *mut *mut c_void,
        seed: u64,
    ) -> *const c_char;
}

/// Runs kernels on tensors in main memory. Copies beside the computing are made as late as they may be, so that a call that is
/// to wait for one, and does not, works on other numbers.
#[derive(Default)]
pub struct Emulator {
    /// Whose memory its tensors are taken for; main memory by itself.
    device: Option<usize>,
    launches: AtomicU64,
    /// What was sent: where it goes, and what it is.
    sent: Mutex<Vec<(Tensor, Tensor)>>,
    begun: Mutex<Vec<Arc<Mutex<Late>>>>,
}

impl Emulator {
    /// One whose tensors are taken for those of this device.
    pub fn of_device(number: usize) -> Self {
        Self { device: Some(number), ..Self::default() }
    }
}

/// Copies that have begun; none are left once they have been made.
struct Late {
    copies: Vec<Copy>,
    memory: Option<Memory>,
}

impl Late {
    fn make(&mut self) {
        if let Some(memory) = self.memory.take() {
            let done = copies::Done::make(&Host, &self.copies, memory);
            (self.copies, self.memory) = (Vec::new(), Some(Box::new(done).wait()));
        }
    }
}

struct Begun(Arc<Mutex<Late>>);

impl Copies for Begun {
    fn are_done(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).copies.is_empty()
    }

    fn wait(self: Box<Self>) -> Memory {
        let mut late = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        late.make();
        late.memory.take().unwrap_or_else(|| Memory::new(Vec::new()))
    }
}

impl Card for Emulator {
    fn number(&self) -> Option<usize> {
        self.device
    }

    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, Device::Cpu))
    }

    fn place(&self, host: Tensor) -> Tensor {
        host
    }

    fn send(&self, host: Tensor) -> Tensor {
        let place = (host.ones_like() * 0x7f).to_kind(host.kind());
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push((place.shallow_clone(), host));
        place
    }

    fn order_sent(&self) {
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(|(mut place, host)| place.copy_(&host));
    }

    fn begin_copies(&self, copies: Vec<Copy>, into: Memory) -> Box<dyn Copies> {
        let late = Arc::new(Mutex::new(Late { copies, memory: Some(into) }));
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).push(late.clone());
        Box::new(Begun(late))
    }

    fn order_copies(&self) {
        self.begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(|late| late.lock().unwrap_or_else(PoisonError::into_inner).make());
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
