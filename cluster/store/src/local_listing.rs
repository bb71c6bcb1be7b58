//! Listings of local directories. A file that lambert never writes must not make a listing fail.
//!
//! Ignores names that are not UTF-8 or have control characters, broken links, and links to directories inside the listed
//! directory. The exceptions are the names of folders of a run, such as `checkpoints`: their links are followed, because
//! a user may move them to another disk. Temporary files are hidden.

use std::fs::{self, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::object::Object;
use crate::run;
use crate::temp_files;

/// Lists the folders and the objects directly below `folder`. A link to a directory is a folder.
pub(crate) fn level(folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let (mut folders, mut names) = (Vec::new(), Vec::new());
    for Entry { name, metadata, .. } in entries(folder)? {
        match metadata.is_dir() {
            true => folders.push(name),
            false => names.push(name),
        }
    }
    Ok((folders, names))
}

/// Lists all objects below `folder`. Their paths begin with `prefix`.
pub(crate) fn tree(folder: &Path, prefix: &str) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    // The directories above the current one. A link to one of them is not followed.
    let mut above = Vec::new();
    collect(folder, prefix, &mut above, &mut objects)?;
    Ok(objects)
}

/// Device and inode number of a directory.
type DirectoryId = (u64, u64);

fn collect(folder: &Path, prefix: &str, above: &mut Vec<DirectoryId>, objects: &mut Vec<Object>) -> Result<()> {
    let Ok(metadata) = fs::metadata(folder) else { return entries(folder).map(drop) };
    let id = (metadata.dev(), metadata.ino());
    if above.contains(&id) {
        return Ok(());
    }
    above.push(id);
    for Entry { name, metadata, is_link } in entries(folder)? {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if metadata.is_file() {
            objects.push(object(path, &metadata));
        } else if !is_link || run::is_folder(&name) {
            match collect(&folder.join(&name), &path, above, objects) {
                // Such as lost+found at the root of a disk.
                Err(denied) if denied.kind() == ErrorKind::PermissionDenied && !run::is_folder(&name) => {}
                done => done?,
            }
        }
    }
    above.pop();
    Ok(())
}

/// A file or directory.
struct Entry {
    name: String,
    /// Of the target, if the entry is a link.
    metadata: Metadata,
    is_link: bool,
}

/// Reads a directory. Returns nothing if it does not exist.
fn entries(folder: &Path) -> Result<Vec<Entry>> {
    let failed = |error: Error| Error::new(error.kind(), format!("cannot list {}: {error}", folder.display()));
    let read = match fs::read_dir(folder) {
        Err(missing) if matches!(missing.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(vec![]),
        read => read.map_err(failed)?,
    };
    let mut entries = Vec::new();
    for entry in read {
        let entry = entry.map_err(failed)?;
        let Some(name) = entry.file_name().to_str().filter(|name| is_usable(name)).map(String::from) else {
            tracing::debug!("ignored {}: not a valid object name", entry.path().display());
            continue;
        };
        let is_link = entry.file_type().map_err(failed)?.is_symlink();
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() || metadata.is_file() => {
                if metadata.is_dir() || !temp_files::is_temp_name(&name) {
                    entries.push(Entry { name, metadata, is_link });
                }
            }
            // A pipe, a socket or a device.
            Ok(_) => {}
            // A broken link, or a file that was removed after the directory was read.
            Err(error) if is_link || error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(entries)
}

fn is_usable(name: &str) -> bool {
    !name.chars().any(char::is_control)
}

fn object(path: String, metadata: &Metadata) -> Object {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    // The same tag as that of LocalFileSystem.
    let tag = format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), modified.as_micros(), metadata.len());
    Object { path, bytes: metadata.len(), tag, modified: modified.as_millis() as i64 }
}
