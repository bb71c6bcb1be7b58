//! Where Open MPI keeps the files of an attempt: a folder on every host that goes when the launcher there is gone, whoever is
//! killed. The first rank of each host sees to that (`lambert-worker train --session`), the coordinator on its own.

use std::path::{Path, PathBuf};

use lambert_store::hash::sha256;

/// The folder of an attempt, which the launcher makes. The system's usual place has a short name: sockets lie below.
pub fn folder(url: &str, attempt: u32) -> PathBuf {
    let (user, run) = (rustix::process::geteuid().as_raw(), &sha256(url.as_bytes())[..8]);
    PathBuf::from(format!("/tmp/lambert-mpirun-{user}-{run}-{attempt}"))
}

/// Removes the folder on this host. That of a launcher that never began is not there.
pub fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", folder.display());
    }
}
