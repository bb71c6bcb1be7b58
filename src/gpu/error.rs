//! Errors of a GPU and of the libraries that it needs.

use std::path::PathBuf;

use super::conflicts::{DeviceConflict, LostGpus};
use super::driver::DriverError;
use super::nvrtc::CompileError;
use super::{driver, libtorch, nvrtc};
use crate::torch;

/// Reason why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// An explicitly set directory has no libtorch with CUDA support.
    #[error("{} not found in {} or its lib/ subdirectory (set by {origin})", libtorch::LIBRARY, folder.display())]
    LibtorchNotInFolder {
        /// Directory.
        folder: PathBuf,
        /// Setting that names the directory.
        origin: &'static str,
    },
    /// No libtorch with CUDA support is installed.
    #[error(
        "cannot find {}: device.libtorch and {} are not set, and it is not in {}; run `cluster/setup.sh --cuda` to install \
         it, or choose the CPU (device.kind = \"cpu\", --device cpu)",
        libtorch::LIBRARY,
        libtorch::ENV_VAR,
        join_paths(searched)
    )]
    LibtorchNotFound {
        /// Directories searched.
        searched: Vec<PathBuf>,
    },
    /// The libtorch version cannot be determined.
    #[error("cannot read the libtorch version for {}: version.py is missing or incomplete", folder.display())]
    LibtorchVersionUnknown {
        /// Directory.
        folder: PathBuf,
    },
    /// The libtorch version differs from the version that this program links to.
    #[error("libtorch in {} is {version}; install {expected_version}, or set device.libtorch to a folder that has it", folder.display())]
    LibtorchVersionMismatch {
        /// Directory.
        folder: PathBuf,
        /// Version found.
        version: String,
        /// Version required.
        expected_version: String,
    },
    /// libtorch or one of its dependencies cannot be loaded.
    #[error("cannot load {}", path.display())]
    Load {
        /// Library.
        path: PathBuf,
        /// Loader error.
        source: libloading::Error,
    },
    /// The driver is missing, or a driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver does not support the CUDA version of libtorch.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, but libtorch {version} was built with CUDA {cuda}; install driver 580 or \
         later",
        supported / 1000, supported % 1000 / 10
    )]
    DriverTooOld {
        /// CUDA version that the driver supports, such as 12040 for 12.4.
        supported: i32,
        /// libtorch version.
        version: String,
        /// CUDA version of libtorch.
        cuda: String,
    },
    /// The driver reports no GPU.
    #[error("the NVIDIA driver sees no GPU{}", visible_devices())]
    NoGpu,
    /// libtorch does not support the compute capability of the GPU.
    #[error(
        "GPU {index} ({name}) has compute capability {}.{}; this libtorch supports 7.5 and later; docs/guides/gpus.md explains \
         how to build for older GPUs",
        compute_capability.0, compute_capability.1
    )]
    UnsupportedGpu {
        /// GPU index.
        index: usize,
        /// GPU name.
        name: String,
        /// Compute capability: major, minor.
        compute_capability: (i32, i32),
    },
    /// libtorch cannot use the GPU that the driver reports.
    #[error("libtorch {version} in {} sees no GPU, although the driver does", folder.display())]
    CudaUnavailable {
        /// libtorch version.
        version: String,
        /// Directory of libtorch.
        folder: PathBuf,
    },
    /// NVRTC is not installed.
    #[error("cannot find {}, which compiles lambert's CUDA kernels; searched {}", nvrtc::NAMES[0], join_paths(searched))]
    NvrtcNotFound {
        /// Directories searched.
        searched: Vec<PathBuf>,
    },
    /// The kernels cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// NCCL is missing or unusable.
    #[error("cannot use NCCL for the gradient all-reduce")]
    Nccl(#[from] lambert_collective::Error),
    /// The devices of two ranks are incompatible.
    #[error(transparent)]
    Conflict(#[from] DeviceConflict),
    /// This host has fewer GPUs than an earlier attempt used there.
    #[error(transparent)]
    Lost(#[from] LostGpus),
    /// The run does not fit in the free memory of the GPU, but would fit in its total
    /// memory. The text describes the shortage.
    #[error("{0}\n  it would fit on a GPU that no other process uses")]
    InsufficientFreeMemory(String),
    /// A libtorch operation failed.
    #[error(transparent)]
    Torch(#[from] torch::TorchError),
}

impl DeviceError {
    /// True for a problem with the setup of the machine or with the configuration. False if a GPU
    /// failed, or if too little memory is free.
    pub fn is_setup_error(&self) -> bool {
        match self {
            Self::Torch(_) | Self::InsufficientFreeMemory(_) | Self::Lost(_) => false,
            Self::Driver(error) => error.has_no_device(),
            Self::Nccl(error) => error.is_nccl_unsupported(),
            _ => true,
        }
    }

    /// True if there is a driver, and this process sees no GPU.
    pub fn is_without_gpu(&self) -> bool {
        match self {
            Self::NoGpu => true,
            Self::Driver(DriverError::Call { code, .. }) => *code == driver::NO_DEVICE,
            _ => false,
        }
    }
}

fn join_paths(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn visible_devices() -> String {
    std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| String::new(), |value| format!(" (CUDA_VISIBLE_DEVICES={value:?})"))
}
