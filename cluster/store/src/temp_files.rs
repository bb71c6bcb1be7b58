//! Removal of temporary files that killed processes leave in a local store.
//!
//! A local object `NAME` is first written to a file `NAME#1` (or `NAME#2`, ... if that file exists). The file is then
//! fsynced and renamed or hard-linked to `NAME`. Listings hide such temporary files, so only this module removes them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::error::{Cause, Error, Result};
use crate::run;
use crate::store::Store;

/// Directories to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchDepth {
    /// Only the named directory.
    Directory,
    /// The named directory and everything below.
    Tree,
}

/// Removes the temporary files below `prefix` of a run that were last modified at least `age` ago. Also removes
/// directories that become empty. Returns the number of files removed. Keeps files whose names only look temporary,
/// such as `analysis/plot #2`. Does nothing for remote stores.
pub(crate) fn remove(run: &Store, prefix: &str, depth: SearchDepth, age: Duration) -> Result<usize> {
    remove_if(run, prefix, &Sweep { depth, age, is_written: run::is_written })
}

/// Rules of a search.
struct Sweep {
    depth: SearchDepth,
    age: Duration,
    /// True for the objects whose temporary files are removed.
    is_written: fn(&str) -> bool,
}

fn remove_if(store: &Store, prefix: &str, rules: &Sweep) -> Result<usize> {
    if !store.is_local() {
        return Ok(0);
    }
    let folder = Path::new(store.url()).join(prefix);
    sweep(&folder, prefix, rules).map_err(|source| Error::Failed {
        operation: "remove temporary files below",
        url: store.url_of(prefix),
        attempts: 1,
        seconds: 0.0,
        source: Cause::new(source),
    })
}

impl Store {
    /// Removes the temporary files that killed processes have left directly in this store. Call this only if no other process
    /// writes to it. Does nothing for remote stores.
    ///
    /// # Errors
    /// The directory cannot be listed, or a file cannot be removed.
    pub fn remove_temporary_files(&self) -> Result<usize> {
        let rules = Sweep { depth: SearchDepth::Directory, age: Duration::ZERO, is_written: |_| true };
        remove_if(self, "", &rules)
    }
}

fn sweep(folder: &Path, prefix: &str, rules: &Sweep) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let Some(name) = entry.file_name().to_str().map(String::from) else { continue };
        let path = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        if kind.is_dir() && rules.depth == SearchDepth::Tree {
            removed += match sweep(&entry.path(), &path(&name), rules) {
                // Such as lost+found at the root of a disk.
                Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied && !run::is_folder(&name) => 0,
                swept => swept?,
            };
        } else if kind.is_file() && object_name(&name).is_some_and(|object| (rules.is_written)(&path(object))) {
            removed += usize::from(ignore_not_found(remove_older(&entry, rules.age))?);
        }
    }
    if removed > 0 || rules.age.is_zero() {
        // remove_dir fails if the directory is not empty. The directory then stays.
        let _ = fs::remove_dir(folder);
    }
    Ok(removed)
}

/// Returns the name of the object if `name` is that of a temporary file.
fn object_name(name: &str) -> Option<&str> {
    let (object, number) = name.rsplit_once('#')?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(object)
}

/// True if listings hide a file of this name.
pub(crate) fn is_temp_name(name: &str) -> bool {
    object_name(name).is_some()
}

/// Removes a file of at least this age. Returns true if it was removed. A modification time in the future (after a
/// clock step) counts as recent.
fn remove_older(entry: &fs::DirEntry, age: Duration) -> io::Result<bool> {
    let touched = entry.metadata()?.modified()?;
    let is_older = age.is_zero() || SystemTime::now().duration_since(touched).is_ok_and(|idle| idle >= age);
    if is_older {
        fs::remove_file(entry.path())?;
    }
    Ok(is_older)
}

/// Converts the error of a missing file to false. A file may disappear concurrently, because its writer renames it or
/// another process removes it.
fn ignore_not_found(removed: io::Result<bool>) -> io::Result<bool> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) })
}
