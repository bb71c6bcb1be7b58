//! A folder of this machine that must stay where it is: whoever moves or removes it takes what it holds along.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder of a store that makes missing folders when it writes.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Inode, by which another folder in its place is known; `None` if it was not there. (The device's number may change where a
    /// file system is mounted again.)
    inode: Option<u64>,
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

impl Folder {
    /// The folder that is at `path` now.
    pub fn at(path: PathBuf) -> Self {
        Self { inode: inode(&path), path }
    }

    /// Where it was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        match self.inode {
            Some(_) => inode(&self.path) == self.inode,
            None => self.path.is_dir(),
        }
    }

    /// Removes `file`, and the folders from there up to this one's place that are empty then: they were made by a write that
    /// began before this folder was moved. Does nothing where no other folder is seen in its place.
    pub fn undo(&self, file: &Path) {
        if inode(&self.path).is_none_or(|found| Some(found) == self.inode) {
            return;
        }
        // What cannot be removed stays: somebody else uses it.
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
    fn a_write_after_the_move_is_undone() {
        let place = tempfile::tempdir().unwrap();
        let (run, moved) = (place.path().join("run"), place.path().join("moved"));
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("metrics/1"), "1").unwrap();
        let folder = Folder::at(run.clone());
        assert!(folder.is_there());
        fs::rename(&run, &moved).unwrap();
        assert!(!folder.is_there());
        // As a store does that has just looked.
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("metrics/2"), "2").unwrap();
        assert!(!folder.is_there(), "another folder has its name");
        folder.undo(&run.join("metrics/2"));
        assert!(!run.exists() && moved.join("metrics/1").exists());
    }

    #[test]
    fn what_others_have_written_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        fs::create_dir(&run).unwrap();
        let folder = Folder::at(run.clone());
        fs::rename(&run, place.path().join("moved")).unwrap();
        fs::create_dir_all(run.join("metrics")).unwrap();
        fs::write(run.join("run.toml"), "another run").unwrap();
        fs::write(run.join("metrics/2"), "2").unwrap();
        folder.undo(&run.join("metrics/2"));
        assert!(run.join("run.toml").exists() && !run.join("metrics").exists());
    }
}
