//! Who works in a work folder. Parts of one division work side by side; everything else would write over each other.
//!
//! Each process locks a file of its own name (flock, which the kernel takes back when the process dies) and then looks
//! whether a file that it cannot live with is locked. So of two that start at once at most one goes on.

use std::fs::{File, TryLockError};
use std::path::Path;

use rustix::io::Errno;

use super::PrepError;
use crate::source::Part;

const SUFFIX: &str = ".lock";

/// Held as long as the process works in the folder.
#[derive(Debug)]
pub struct Lock {
    #[expect(dead_code, reason = "closing the file gives the lock back")]
    file: File,
    /// `false` on a file system without locks: then it is for the user not to start the same work twice.
    pub is_held: bool,
}

impl Lock {
    /// Takes the place of `part` in `folder`, or that of the process that joins all parts.
    pub fn take(folder: &Path, part: Part) -> Result<Self, PrepError> {
        let own = name(part);
        let lock = lock(folder, &own, File::try_lock)?;
        let fault = |source| PrepError::Work { operation: "list", path: folder.to_owned(), source };
        for entry in std::fs::read_dir(folder).map_err(fault)? {
            let other = entry.map_err(fault)?.file_name().to_string_lossy().into_owned();
            if other.ends_with(SUFFIX) && other != own && !side_by_side(&other, part) {
                drop(self::lock(folder, &other, File::try_lock_shared)?);
            }
        }
        Ok(lock)
    }
}

fn name(part: Part) -> String {
    match part {
        Some((index, parts)) => format!("part-{index}-of-{parts}{SUFFIX}"),
        None => format!("all-parts{SUFFIX}"),
    }
}

/// Whether the owner of the file `other` divides the work as `part` does.
fn side_by_side(other: &str, part: Part) -> bool {
    part.is_some_and(|(_, parts)| other.starts_with("part-") && other.ends_with(&format!("-of-{parts}{SUFFIX}")))
}

fn lock(folder: &Path, name: &str, take: fn(&File) -> Result<(), TryLockError>) -> Result<Lock, PrepError> {
    let path = folder.join(name);
    let fault = |source| PrepError::Work { operation: "lock", path: path.clone(), source };
    // NFS turns flock into fcntl's locks, of which a shared one needs a file that is open for reading and an exclusive
    // one a file that is open for writing.
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(fault)?;
    match take(&file) {
        Ok(()) => Ok(Lock { file, is_held: true }),
        Err(TryLockError::WouldBlock) => {
            let what = name.trim_end_matches(SUFFIX).replace('-', " ");
            Err(PrepError::Busy { folder: folder.to_owned(), what })
        }
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(Lock { file, is_held: false }),
        Err(TryLockError::Error(error)) => Err(fault(error)),
    }
}

/// Whether the file system has no locks: it says so, or its server's lock manager does not answer (ENOLCK).
fn has_no_locks(error: &std::io::Error) -> bool {
    let codes = [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_of_one_division_work_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let take = |part| Lock::take(folder.path(), part);
        let first = take(Some((0, 3))).unwrap();
        let second = take(Some((2, 3))).unwrap();
        for part in [Some((0, 3)), Some((2, 3)), Some((1, 4)), None] {
            let message = take(part).unwrap_err().to_string();
            assert!(message.contains("part ") && message.contains("of 3"), "{message}");
        }
        drop((first, second));
        let all = take(None).unwrap();
        assert!(take(None).is_err() && take(Some((1, 3))).unwrap_err().to_string().contains("all parts"));
        drop(all);
        take(Some((0, 4))).unwrap();
    }
}
