//! Compute device of a rank: the CPU or a GPU. The libraries that a GPU needs (driver, CUDA part of libtorch, NVRTC,
//! NCCL) are loaded at run time, so that one program runs on machines with and without a GPU.
//!
//! - [`ComputeDevice`]: the device of a rank
//! - [`DeviceError`]: reason why a GPU cannot be used
//! - [`conflicts`]: incompatible devices among ranks, GPUs that a host has lost
//! - [`Driver`]: device queries and kernel launches
//! - [`Libtorch`]: the CUDA part of libtorch
//! - [`Nvrtc`]: compiler of the hand-written kernels
//! - `cubin`: compiled kernels and their cache file
//! - [`Nccl`]: NCCL library
//! - [`nvml`]: values and Xid errors of a GPU
//! - [`CommStream`]: the stream on which NCCL runs all-reduces

pub mod conflicts;
mod cubin;
mod device;
mod driver;
mod error;
mod libtorch;
mod nccl;
pub mod nvml;
mod nvrtc;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lambert_collective::nccl::NcclLibrary;
use lambert_collective::world::World;
use lambert_config::exit;
use lambert_config::run::{Backend, Device, DeviceKind, Precision};

use crate::kernels::{Cuda, Host, Kernels};
use crate::torch;

use device::CudaDevice;

pub use driver::{Driver, DriverError, GpuProperties, LoadedKernels};
pub use error::DeviceError;
pub use libtorch::Libtorch;
pub use nccl::{Nccl, infiniband_devices};
pub use nvrtc::{CompileError, Nvrtc};
pub use stream::CommStream;

/// Minimum compute capability that the libtorch wheels support.
const MIN_COMPUTE_CAPABILITY: (i32, i32) = (7, 5);

/// Compute device of a rank.
pub enum ComputeDevice {
    /// CPU.
    Host,
    /// GPU, with the libraries loaded for it.
    Gpu(Driver, Libtorch, Option<Nccl>),
}

impl ComputeDevice {
    /// Selects the configured device and loads its libraries, including NCCL if `backend` uses NCCL. `auto` selects a
    /// GPU if the driver reports a GPU. Must be called before any other use of libtorch.
    ///
    /// # Errors
    /// A GPU is required, or `auto` finds a GPU, but the GPU cannot be used. Training
    /// never falls back to the CPU silently.
    pub fn load(device: &Device, backend: Backend) -> Result<Self, DeviceError> {
        if device.kind == DeviceKind::Cpu {
            return Ok(Self::Host);
        }
        let is_required = device.kind == DeviceKind::Cuda;
        let uses_nccl = Nccl::should_load(backend, lambert_collective::world::detect().as_ref());
        let driver = match Driver::open() {
            Err(error) if !is_required && error.has_no_device() => return Ok(Self::Host),
            Err(error) => {
                // Report other problems before the driver error, because users can fix them without an administrator.
                let libtorch = Libtorch::find(&device.libtorch, torch::BUILT_WITH)?;
                if uses_nccl {
                    NcclLibrary::find(&libtorch.nvidia_folders()).map_err(DeviceError::Nccl)?;
                }
                return Err(error.into());
            }
            Ok(driver) => driver,
        };
        if driver.device_count()? == 0 {
            return if is_required { Err(DeviceError::NoGpu) } else { Ok(Self::Host) };
        }
        let libtorch = Libtorch::find(&device.libtorch, torch::BUILT_WITH)?;
        let (supported, needed) =
            (driver.version()?, libtorch.cuda.split('.').next().and_then(|major| major.parse().ok()));
        if needed.is_some_and(|major: i32| supported / 1000 < major) {
            let Libtorch { version, cuda, .. } = libtorch;
            return Err(DeviceError::DriverTooOld { supported, version, cuda });
        }
        libtorch.load()?;
        torch::gpu::exit_on_cuda_error(exit::GPU_FAILED);
        if device.deterministic {
            torch::guard(torch::gpu::use_deterministic_algorithms)?;
        }
        let nccl = if uses_nccl { Some(Nccl::load(&libtorch)?) } else { None };
        Ok(Self::Gpu(driver, libtorch, nccl))
    }

    /// Describes the device and its libraries in one line.
    ///
    /// # Errors
    /// The driver does not count its GPUs.
    pub fn describe(&self) -> Result<String, DeviceError> {
        let Self::Gpu(driver, libtorch, nccl) = self else { return Ok("device: CPU".to_owned()) };
        let Libtorch { version, folder, origin, .. } = libtorch;
        let (count, with_nccl) = (driver.device_count()?, if nccl.is_some() { ", NCCL" } else { "" });
        let gpus = if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
        Ok(format!("device: {gpus}, libtorch {version} from {} ({origin}){with_nccl}", folder.display()))
    }

    /// Takes the NCCL library, if loaded.
    pub fn take_nccl(&mut self) -> Option<Nccl> {
        match self {
            Self::Host => None,
            Self::Gpu(_, _, nccl) => nccl.take(),
        }
    }

    /// Returns the kernels of the device and, if the device is a GPU, its description. The GPU index is the local rank
    /// modulo the number of GPUs. `precision` decides whether f32 matrix products use TF32.
    ///
    /// # Errors
    /// The GPU or NVRTC cannot be used.
    pub fn kernels(
        self,
        world: Option<&World>,
        precision: Precision,
    ) -> Result<(Arc<dyn Kernels>, Option<Gpu>), DeviceError> {
        let Self::Gpu(driver, libtorch, _) = self else { return Ok((Arc::new(Host), None)) };
        let device_count = driver.device_count()?;
        let index = world.map_or(0, |world| world.local_rank) % device_count.max(1);
        let properties = driver.properties(index)?;
        if properties.compute_capability < MIN_COMPUTE_CAPABILITY {
            return Err(DeviceError::UnsupportedGpu {
                index,
                name: properties.name,
                compute_capability: properties.compute_capability,
            });
        }
        if !torch::guard(tch::Cuda::is_available)? {
            return Err(DeviceError::CudaUnavailable { version: libtorch.version, folder: libtorch.folder });
        }
        torch::guard(|| {
            torch::gpu::allow_tf32(precision == Precision::Tf32);
            torch::gpu::disable_cudnn_attention();
        })?;
        let searched = libtorch.nvidia_folders();
        let mut compiler = None;
        for folder in &searched {
            compiler = compiler.or(Nvrtc::open(folder)?);
        }
        let compiler = compiler.ok_or(DeviceError::NvrtcNotFound { searched })?;
        let code = compiler.kernels(&properties.architecture(), cache_dir().as_deref())?;
        // Measure free memory before libtorch allocates GPU memory.
        let free_memory =
            settled_free_memory(properties.memory, &mut || driver.free_memory(index), &mut std::thread::sleep)?;
        let driver = Arc::new(driver);
        let kernels = CudaDevice::load(&driver, index, &code)?;
        let gpu = Gpu {
            index,
            properties,
            free_memory,
            libtorch,
            nvrtc_version: compiler.version()?,
            kernels: Some(Arc::clone(&kernels)),
        };
        let device = CudaDevice::new(driver, &gpu, kernels);
        Ok((Arc::new(Cuda::new(Arc::new(device))), Some(gpu)))
    }
}

/// GPU of a rank.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// Device index in this process.
    pub index: usize,
    /// Hardware properties.
    pub properties: GpuProperties,
    /// Free memory at start-up in bytes.
    pub free_memory: u64,
    /// libtorch in use.
    pub libtorch: Libtorch,
    pub nvrtc_version: String,
    /// Loaded kernels.
    pub kernels: Option<Arc<LoadedKernels>>,
}

impl Gpu {
    /// Short name for messages: index, product name, PCI bus ID.
    pub fn name(&self) -> String {
        format!("{} ({}, {})", self.index, self.properties.name, self.properties.pci_bus_id)
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, properties, free_memory, libtorch, nvrtc_version, kernels: _ } = self;
        write!(
            f,
            "GPU {index}, {} ({}, {} GiB, {:.1} GiB free, {}); libtorch {} from {} ({}), NVRTC {nvrtc_version}",
            properties.name,
            properties.architecture(),
            properties.memory >> 30,
            *free_memory as f64 / f64::from(1 << 30),
            properties.pci_bus_id,
            libtorch.version,
            libtorch.folder.display(),
            libtorch.origin
        )
    }
}

/// Maximum time to wait for the memory of ended processes, in seconds.
const MAX_SETTLE_SECONDS: usize = 10;

/// Measures free memory in bytes. If more than a tenth of `all` is in use, waits while free memory grows, at most
/// [`MAX_SETTLE_SECONDS`] seconds. The memory of a rank that was just killed is released only after some time.
fn settled_free_memory(
    all: u64,
    free: &mut dyn FnMut() -> Result<u64, DriverError>,
    wait: &mut dyn FnMut(Duration),
) -> Result<u64, DriverError> {
    let mut last = free()?;
    for _ in 0..MAX_SETTLE_SECONDS {
        if last >= all - all / 10 {
            break;
        }
        wait(Duration::from_secs(1));
        let now = free()?;
        if now <= last {
            break;
        }
        last = now;
    }
    Ok(last)
}

/// Cache directory; `None` if the environment does not define a cache directory.
fn cache_dir() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("lambert"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_memory_of_ended_processes() {
        let settle = |readings: &[u64]| {
            let (mut readings, mut waited) = (readings.iter().copied(), 0);
            let free = settled_free_memory(100, &mut || Ok(readings.next().unwrap()), &mut |_| waited += 1).unwrap();
            (free, waited)
        };
        assert_eq!(settle(&[95]), (95, 0));
        assert_eq!(settle(&[20, 60, 97]), (97, 2));
        assert_eq!(settle(&[50, 50]), (50, 1), "memory used by another process");
        assert_eq!(settle(&[50, 40]), (50, 1));
        assert_eq!(settle(&(10..30).collect::<Vec<_>>()), (20, 10), "at most ten seconds");
    }

    #[test]
    fn cpu_needs_no_libraries_and_cuda_reports_the_missing_one() {
        let device = |kind| Device { kind, libtorch: "/nowhere".to_owned(), ..Device::default() };
        let load = |kind| ComputeDevice::load(&device(kind), Backend::Auto);
        assert!(matches!(load(DeviceKind::Cpu), Ok(ComputeDevice::Host)));
        let Err(error) = load(DeviceKind::Cuda) else { panic!("expected an error") };
        assert!(
            error.to_string().starts_with(
                "libtorch_cuda.so not found in /nowhere or its lib/ subdirectory (set by device.libtorch)"
            ),
            "{error}"
        );
        assert!(error.is_setup_error());
    }
}
