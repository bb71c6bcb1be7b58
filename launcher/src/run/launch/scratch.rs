//! Scratch directories of Open MPI for an attempt. There are two directories on every host. They are removed once the
//! launcher on the host has exited, even if the launcher was killed. The first rank of each host removes them
//! (`lambert-worker train --session`). The coordinator removes the directories on its own host.

use std::path::{Path, PathBuf};

use lambert_store::{host_paths, private_dir};

/// A directory cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} for the files of mpirun and MPI", folder.display())]
pub struct ScratchError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Scratch directories of an attempt, with the same paths on every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchDirs {
    /// Files of the launcher, which creates the directory.
    pub files: PathBuf,
    /// Shared memory of the ranks on a host. The ranks create the directory. A killed launcher leaves files in it.
    pub memory: PathBuf,
}

impl ScratchDirs {
    /// Returns the directories for an attempt of the run at `url`.
    pub fn new(url: &str, attempt: u32) -> Self {
        let [files, memory] = host_paths::scratch(url, attempt);
        Self { files, memory }
    }

    /// Creates `folders` on this host, private to this user.
    ///
    /// # Errors
    /// A directory cannot be created or belongs to another user.
    pub fn create(folders: &[&Path]) -> Result<(), ScratchError> {
        for (index, folder) in folders.iter().enumerate() {
            if let Err(source) = private_dir::create(folder) {
                folders[..index].iter().for_each(|created| drop(std::fs::remove_dir(created)));
                return Err(ScratchError { folder: folder.to_path_buf(), source });
            }
        }
        Ok(())
    }

    /// Returns the two directories.
    pub fn folders(&self) -> [&Path; 2] {
        [&self.files, &self.memory]
    }

    /// Removes the directories on this host. Ignores missing directories.
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
