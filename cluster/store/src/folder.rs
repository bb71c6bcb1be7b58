//! Detects that the directory of a store was moved or removed while the store is in use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Root directory of a local store, checked before writes. Without this check, a write would recreate a missing
/// directory.
#[derive(Debug)]
pub struct RequiredFolder {
    path: PathBuf,
    /// Inode number, which identifies the directory. `None` if the directory did not exist. The device number is not
    /// compared, because it can change when a file system is remounted.
    inode: Option<u64>,
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

impl RequiredFolder {
    /// Records the directory that is at `path` now.
    pub fn at(path: PathBuf) -> Self {
        Self { inode: inode(&path), path }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the recorded directory is still at its path.
    pub fn is_there(&self) -> bool {
        match self.inode {
            Some(_) => inode(&self.path) == self.inode,
            None => self.path.is_dir(),
        }
    }

    /// Removes `file`, and then its empty parent directories up to and including this path. Call this after a write
    /// that has recreated the moved directory at its old path. Does nothing if the path is missing or still is the
    /// recorded directory.
    pub fn undo(&self, file: &Path) {
        if inode(&self.path).is_none_or(|found| Some(found) == self.inode) {
            return;
        }
        // Best effort: a file or directory that cannot be removed stays.
        let _ = fs::remove_file(file);
        let within = |folder: &&Path| folder.starts_with(&self.path);
        for folder in file.ancestors().skip(1).take_while(within) {
            if fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_after_a_move_is_undone() {
        let place = tempfile::tempdir().unwrap();
        let (run, moved) = (place.path().join("run"), place.path().join("moved"));
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("metrics/1"), "1").unwrap();
        let folder = RequiredFolder::at(run.clone());
        assert!(folder.is_there());
        fs::rename(&run, &moved).unwrap();
        assert!(!folder.is_there());
        // A store recreates the directory if it made its check just before the move.
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("metrics/2"), "2").unwrap();
        assert!(!folder.is_there(), "another folder has its name");
        folder.undo(&run.join("metrics/2"));
        assert!(!run.exists() && moved.join("metrics/1").exists());
    }

    #[test]
    fn undo_keeps_files_of_others() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        fs::create_dir(&run).unwrap();
        let folder = RequiredFolder::at(run.clone());
        fs::rename(&run, place.path().join("moved")).unwrap();
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("run.toml"), "another run").unwrap();
        fs::write(run.join("metrics/2"), "2").unwrap();
        folder.undo(&run.join("metrics/2"));
        assert!(run.join("run.toml").exists() && !run.join("metrics").exists());
    }
}
