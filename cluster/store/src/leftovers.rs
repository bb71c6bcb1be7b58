//! Half-written files that a killed process leaves in a local store.
//!
//! A local object is written as `NAME#1` (`#2`, ... if that is taken), flushed, and given its name by a rename
//! or a hard link. Listings do not show such files, so nothing but this removes them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::error::{Cause, Error, Result};
use crate::store::Store;

/// Which folders are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Only the one that is named.
    Folder,
    /// All below it, too.
    Tree,
}

/// Removes half-written files below `prefix` that have not been touched for `age`; returns how many. Folders
/// left empty by this go too. Does nothing in stores that are not local.
pub(crate) fn remove(store: &Store, prefix: &str, depth: Depth, age: Duration) -> Result<usize> {
    if !store.is_local() {
        return Ok(0);
    }
    let folder = Path::new(store.url()).join(prefix);
    sweep(&folder, depth, age).map_err(|source| Error::Failed {
        operation: "remove half-written files below",
        url: store.url_of(prefix),
        attempts: 1,
        seconds: 0.0,
        source: Cause::new(source),
    })
}

fn sweep(folder: &Path, depth: Depth, age: Duration) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth == Depth::Tree {
            removed += sweep(&entry.path(), depth, age)?;
        } else if kind.is_file() && is_half_written(&entry) {
            removed += usize::from(gone_is_fine(remove_older(&entry, age))?);
        }
    }
    if removed > 0 || age.is_zero() {
        // Only an empty folder can be removed; any other is still in use.
        let _ = fs::remove_dir(folder);
    }
    Ok(removed)
}

fn is_half_written(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Removes a file that is old enough; whether it was. One from the future (a clock that jumped back) counts as young.
fn remove_older(entry: &fs::DirEntry, age: Duration) -> io::Result<bool> {
    let touched = entry.metadata()?.modified()?;
    let is_older = age.is_zero() || SystemTime::now().duration_since(touched).is_ok_and(|idle| idle >= age);
    if is_older {
        fs::remove_file(entry.path())?;
    }
    Ok(is_older)
}

/// Its writer may give a file its name meanwhile, or another process remove it.
fn gone_is_fine(removed: io::Result<bool>) -> io::Result<bool> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) })
}
