//! CPU emulation of the CUDA kernels. kernels.cu is compiled as C++, and the threads of a block are
//! fibers that run in a seeded random order.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tch::{Device, Kind, Tensor};

use super::launch::{KernelArguments, KernelDevice, THREADS};
use crate::kernels::{Host, HostBuffer, Kernels, PendingSnapshot, TensorCopy, snapshot};

unsafe extern "C" {
    fn lambert_emulate(
        kernel: *const c_char,
        blocks: u32,
        threads: u32,
        arguments: *mut *mut c_void,
        seed: u64,
    ) -> *const c_char;
}

/// Runs the kernels on tensors in host memory. Asynchronous copies run as late as the API permits, so that a missing
/// wait produces wrong values.
#[derive(Default)]
pub struct Emulator {
    /// Index of the CUDA device that is reported as the location of the tensors; `None`: host memory.
    device: Option<usize>,
    launches: AtomicU64,
    /// Pending uploads: destination and source.
    pending_uploads: Mutex<Vec<(Tensor, Tensor)>>,
    pending_snapshots: Mutex<Vec<Arc<Mutex<DeferredCopies>>>>,
}

impl Emulator {
    /// Creates an emulator that reports CUDA device `number` as the location of its tensors.
    pub fn with_device_index(number: usize) -> Self {
        Self { device: Some(number), ..Self::default() }
    }
}

/// Deferred copies. `copies` is empty when the copies are done.
struct DeferredCopies {
    copies: Vec<TensorCopy>,
    memory: Option<HostBuffer>,
}

impl DeferredCopies {
    fn run(&mut self) {
        if let Some(memory) = self.memory.take() {
            let done = snapshot::CompletedSnapshot::copy(&Host, &self.copies, memory);
            (self.copies, self.memory) = (Vec::new(), Some(Box::new(done).wait()));
        }
    }
}

struct EmulatedSnapshot(Arc<Mutex<DeferredCopies>>);

impl PendingSnapshot for EmulatedSnapshot {
    fn is_complete(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).copies.is_empty()
    }

    fn wait(self: Box<Self>) -> HostBuffer {
        let mut deferred = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.run();
        deferred.memory.take().unwrap_or_else(|| HostBuffer::new(Vec::new()))
    }
}

impl KernelDevice for Emulator {
    fn device_index(&self) -> Option<usize> {
        self.device
    }

    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, Device::Cpu))
    }

    fn to_device(&self, host: Tensor) -> Tensor {
        host
    }

    fn to_device_async(&self, host: Tensor) -> Tensor {
        let target = (host.ones_like() * 0x7f).to_kind(host.kind());
        self.pending_uploads.lock().unwrap_or_else(PoisonError::into_inner).push((target.shallow_clone(), host));
        target
    }

    fn wait_uploads(&self) {
        self.pending_uploads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(|(mut target, host)| target.copy_(&host));
    }

    fn start_snapshot(&self, copies: Vec<TensorCopy>, into: HostBuffer) -> Box<dyn PendingSnapshot> {
        let deferred = Arc::new(Mutex::new(DeferredCopies { copies, memory: Some(into) }));
        self.pending_snapshots.lock().unwrap_or_else(PoisonError::into_inner).push(deferred.clone());
        Box::new(EmulatedSnapshot(deferred))
    }

    fn wait_snapshots(&self) {
        self.pending_snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(|deferred| deferred.lock().unwrap_or_else(PoisonError::into_inner).run());
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(numbers)
    }

    fn seed(&self, seed: u64) {
        Host.seed(seed);
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &mut KernelArguments) -> Result<(), String> {
        let name = CString::new(kernel).map_err(|error| error.to_string())?;
        let seed = self.launches.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
        // SAFETY: the emulator reads one argument per parameter of this kernel. The tensors that
        // the arguments point to outlive the call.
        let error = unsafe {
            let pointers = arguments.pointers().as_mut_ptr();
            lambert_emulate(name.as_ptr(), blocks as u32, THREADS as u32, pointers, seed)
        };
        match error.is_null() {
            true => Ok(()),
            // SAFETY: `error` is a NUL-terminated string that stays valid until the next call on this thread.
            false => Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()),
        }
    }
}
