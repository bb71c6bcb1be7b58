//! NCCL, where cards of several ranks sum their gradients: found and loaded before anything else of the process runs.

use std::sync::Arc;

use lambert_collective::nccl::{NcclLibrary, NcclLog, NcclReport};
use lambert_collective::world::World;
use lambert_config::run::Backend;

use super::{DeviceError, Libtorch};

/// The library that libtorch uses, too.
pub struct Nccl {
    /// Its functions.
    pub library: Arc<NcclLibrary>,
    log: Option<NcclLog>,
}

impl Nccl {
    /// Whether ranks with cards sum by NCCL.
    pub fn is_wanted(backend: Backend, world: Option<&World>) -> bool {
        match backend {
            Backend::Nccl => true,
            Backend::Auto => world.is_some_and(|world| world.size > 1),
            Backend::Local | Backend::Mpi => false,
        }
    }

    /// Loads it, after libtorch.
    ///
    /// # Errors
    /// There is none beside libtorch, or it cannot be used.
    pub fn load(libtorch: &Libtorch) -> Result<Self, DeviceError> {
        let log = NcclLog::open();
        let library = NcclLibrary::open(&libtorch.nvidia_folders())?;
        Ok(Self { library: Arc::new(library), log })
    }

    /// What it is, and what it has chosen so far.
    pub fn report(&self) -> NcclReport {
        NcclReport::new(&self.library, self.log.as_ref().map(NcclLog::read).as_deref())
    }
}

/// InfiniBand cards of this host, as `mlx5_0`.
pub fn infiniband() -> Vec<String> {
    let cards = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> = cards.map(|card| card.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_collective::launchers::MPIRUN;

    #[test]
    fn several_ranks_sum_by_nccl_unless_somebody_says_otherwise() {
        let world = |size| World { launcher: &MPIRUN, rank: 0, size, local_rank: 0, local_size: size };
        let wanted = |backend, size| Nccl::is_wanted(backend, Some(&world(size)));
        assert!(wanted(Backend::Auto, 2) && !wanted(Backend::Auto, 1) && !wanted(Backend::Mpi, 2));
        assert!(wanted(Backend::Nccl, 1));
        assert!(!Nccl::is_wanted(Backend::Auto, None));
    }
}
