//! Locks on the work folder. Two processes may run concurrently if both divide the corpus into the same number of parts
//! and they work on different parts. All other combinations are refused.
//!
//! Each process locks its own file with flock, and then checks that no incompatible file is locked. So if two
//! incompatible processes start at the same time, at most one continues. The kernel releases the lock when the process
//! dies.

use std::fs::{File, TryLockError};
use std::path::Path;

use rustix::io::Errno;

use super::PrepError;
use crate::source::WorkPart;

const SUFFIX: &str = ".lock";

/// A lock on one part of a work folder, released on drop.
#[derive(Debug)]
pub struct WorkFolderLock {
    #[expect(dead_code, reason = "closing the file gives the lock back")]
    file: File,
    /// False if the file system has no locks. Concurrent preparation jobs are then not detected.
    pub is_held: bool,
}

impl WorkFolderLock {
    /// Locks `part` of the folder. `None` locks the whole folder for the process that writes the datasets.
    ///
    /// # Errors
    /// Another process holds the lock of `part` or of an incompatible part.
    pub fn acquire(folder: &Path, part: WorkPart) -> Result<Self, PrepError> {
        let own = file_name(part);
        let lock = lock(folder, &own, File::try_lock)?;
        let io_error = |source| PrepError::WorkIo { operation: "list", path: folder.to_owned(), source };
        for entry in std::fs::read_dir(folder).map_err(io_error)? {
            let other = entry.map_err(io_error)?.file_name().to_string_lossy().into_owned();
            if other.ends_with(SUFFIX) && other != own && !can_coexist(&other, part) {
                drop(self::lock(folder, &other, File::try_lock_shared)?);
            }
        }
        Ok(lock)
    }
}

fn file_name(part: WorkPart) -> String {
    match part {
        Some((index, parts)) => format!("part-{index}-of-{parts}{SUFFIX}"),
        None => format!("all-parts{SUFFIX}"),
    }
}

/// True for the name of a lock file.
pub fn is_lock_file(name: &str) -> bool {
    name.strip_suffix(SUFFIX)
        .is_some_and(|stem| stem == "all-parts" || stem.starts_with("part-") && stem.contains("-of-"))
}

/// True if `other` is the lock file of a process with the same number of parts as `part`.
fn can_coexist(other: &str, part: WorkPart) -> bool {
    part.is_some_and(|(_, parts)| other.starts_with("part-") && other.ends_with(&format!("-of-{parts}{SUFFIX}")))
}

fn lock(
    folder: &Path,
    name: &str,
    acquire: fn(&File) -> Result<(), TryLockError>,
) -> Result<WorkFolderLock, PrepError> {
    let path = folder.join(name);
    let io_error = |source| PrepError::WorkIo { operation: "lock", path: path.clone(), source };
    // NFS implements flock with fcntl locks: a shared lock requires read access, and an exclusive lock requires write
    // access.
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(io_error)?;
    match acquire(&file) {
        Ok(()) => Ok(WorkFolderLock { file, is_held: true }),
        Err(TryLockError::WouldBlock) => {
            let part = name.trim_end_matches(SUFFIX).replace('-', " ");
            Err(PrepError::FolderInUse { folder: folder.to_owned(), part })
        }
        Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(WorkFolderLock { file, is_held: false }),
        Err(TryLockError::Error(error)) => Err(io_error(error)),
    }
}

/// True if the file system has no locks or its lock manager does not answer (ENOLCK).
fn is_unsupported(error: &std::io::Error) -> bool {
    let codes = [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_the_same_division_may_run_concurrently() {
        let folder = tempfile::tempdir().unwrap();
        let acquire = |part| WorkFolderLock::acquire(folder.path(), part);
        let first = acquire(Some((0, 3))).unwrap();
        let second = acquire(Some((2, 3))).unwrap();
        for part in [Some((0, 3)), Some((2, 3)), Some((1, 4)), None] {
            let message = acquire(part).unwrap_err().to_string();
            assert!(message.contains("part ") && message.contains("of 3"), "{message}");
        }
        drop((first, second));
        let all = acquire(None).unwrap();
        assert!(acquire(None).is_err() && acquire(Some((1, 3))).unwrap_err().to_string().contains("all parts"));
        drop(all);
        acquire(Some((0, 4))).unwrap();
    }
}
