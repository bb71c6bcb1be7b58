//! Loads NCCL at process start. NCCL all-reduces gradients between GPUs.

use std::sync::Arc;

use lambert_collective::nccl::{NcclLibrary, NcclLog, NcclReport};
use lambert_collective::world::World;
use lambert_config::run::Backend;

use super::{DeviceError, Libtorch};

/// The NCCL library, shared with libtorch, and its log.
pub struct Nccl {
    /// Bound functions.
    pub library: Arc<NcclLibrary>,
    log: Option<NcclLog>,
}

impl Nccl {
    /// True if GPU ranks all-reduce gradients with NCCL.
    pub fn should_load(backend: Backend, world: Option<&World>) -> bool {
        match backend {
            Backend::Nccl => true,
            Backend::Auto => world.is_some_and(|world| world.size > 1),
            Backend::Local | Backend::Mpi => false,
        }
    }

    /// Loads NCCL. Must be called after libtorch is loaded.
    ///
    /// # Errors
    /// NCCL is missing or cannot be used.
    pub fn load(libtorch: &Libtorch) -> Result<Self, DeviceError> {
        let log = NcclLog::open();
        let library = NcclLibrary::open(&libtorch.nvidia_folders())?;
        Ok(Self { library: Arc::new(library), log })
    }

    /// NCCL's log so far. Empty if the user has redirected it.
    pub fn log(&self) -> String {
        self.log.as_ref().map(NcclLog::read).unwrap_or_default()
    }

    /// Version and transports that NCCL has logged so far.
    pub fn report(&self) -> NcclReport {
        NcclReport::new(&self.library, self.log.as_ref().map(NcclLog::read).as_deref())
    }
}

/// InfiniBand devices of this host, such as `mlx5_0`.
pub fn infiniband_devices() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> = devices.map(|device| device.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_collective::launchers::MPIRUN;

    #[test]
    fn multi_rank_runs_use_nccl_unless_configured_otherwise() {
        let world = |size| World { launcher: &MPIRUN, rank: 0, size, local_rank: 0, local_size: size };
        let should_load = |backend, size| Nccl::should_load(backend, Some(&world(size)));
        assert!(should_load(Backend::Auto, 2) && !should_load(Backend::Auto, 1) && !should_load(Backend::Mpi, 2));
        assert!(should_load(Backend::Nccl, 1));
        assert!(!Nccl::should_load(Backend::Auto, None));
    }
}
