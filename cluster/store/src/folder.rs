//! Detects that a store's directory was moved or removed while the store is in use.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Root directory of a local store that creates missing directories on write.
#[derive(Debug)]
pub struct RequiredFolder {
    path: PathBuf,
    /// Inode, which identifies the directory; `None` if it did not exist. (The device number may change when a file
    /// system is remounted.)
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

    /// RecordedStep path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the same directory is still at its path.
    pub fn is_there(&self) -> bool {
        match self.inode {
            Some(_) => inode(&self.path) == self.inode,
            None => self.path.is_dir(),
        }
    }

    /// Removes `file` and its empty parent directories up to this one's path, after a write recreated them at the old
    /// path of a moved directory. Does nothing unless another directory has taken the path.
    pub fn undo(&self, file: &Path) {
        if inode(&self.path).is_none_or(|found| Some(found) == self.inode) {
            return;
        }
        // Best effort: whatever cannot be removed is in use.
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
        // A store that checked before the move recreates the directory.
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
