//! Where Open MPI keeps the files of an attempt: two folders on every host, which go when the launcher there is gone, whoever
//! is killed. The first rank of each host sees to that (`lambert-worker train --session`), the coordinator on its own.

use std::path::{Path, PathBuf};

use lambert_store::{host_paths, private_dir};

/// A folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}, where mpirun and MPI keep files of this attempt", folder.display())]
pub struct SessionError {
    folder: PathBuf,
    source: std::io::Error,
}

/// The folders of an attempt, of one name on every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Of the launcher, which makes it.
    pub files: PathBuf,
    /// Of the memory that the ranks of a host share. They make it: the launcher would leave its contents where it is killed.
    pub memory: PathBuf,
}

impl Session {
    /// That of an attempt of the run at `url`.
    pub fn new(url: &str, attempt: u32) -> Self {
        let [files, memory] = host_paths::scratch(url, attempt);
        Self { files, memory }
    }

    /// Creates `folders` of this session on this host, for this user alone.
    ///
    /// # Errors
    /// The first that cannot be created, or that somebody else has created.
    pub fn create(folders: &[&Path]) -> Result<(), SessionError> {
        for (index, folder) in folders.iter().enumerate() {
            if let Err(source) = private_dir::create(folder) {
                folders[..index].iter().for_each(|created| drop(std::fs::remove_dir(created)));
                return Err(SessionError { folder: folder.to_path_buf(), source });
            }
        }
        Ok(())
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
