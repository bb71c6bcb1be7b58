//! Where Open MPI keeps the files of an attempt: two folders on every host, which go when the launcher there is gone, whoever
//! is killed. The first rank of each host sees to that (`lambert-worker train --session`), the coordinator on its own.

use std::path::{Path, PathBuf};

use lambert_store::hash::sha256;

/// The folders of an attempt, of one name on every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Of the launcher, which makes it. The system's usual place has a short name: sockets lie below.
    pub files: PathBuf,
    /// Of the memory that the ranks of a host share. They make it: the launcher would leave its contents where it is killed.
    pub memory: PathBuf,
}

impl Session {
    /// That of an attempt of the run at `url`.
    pub fn new(url: &str, attempt: u32) -> Self {
        let (user, run) = (rustix::process::geteuid().as_raw(), &sha256(url.as_bytes())[..8]);
        let name = format!("lambert-mpirun-{user}-{run}-{attempt}");
        Self { files: Path::new("/tmp").join(&name), memory: Path::new("/dev/shm").join(&name) }
    }

    /// Both folders.
    pub fn folders(&self) -> [&Path; 2] {
        [&self.files, &self.memory]
    }

    /// Removes the folders on this host. Those of a launcher that never began are not there.
    pub fn remove(&self) {
        for folder in self.folders() {
            if let Err(error) = std::fs::remove_dir_all(folder)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("cannot remove {}: {error}", folder.display());
            }
        }
    }
}
