//! Protection of files that are not from lambert. A work folder is removed at the end, so it must not be a folder with other
//! files, nor contain the datasets.

use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use lambert_config::PrepConfig;
use lambert_dataset::sha256_hex;
use lambert_store::Store;

use super::PrepError;
use super::job_file;
use super::lock;

/// Name of the file that identifies the job.
pub const JOB_FILE: &str = "job.json";
/// Folder of the spill files.
pub const SPILL_FOLDER: &str = "documents";

/// Prefixes of the names of the other files and folders.
const SPLITS: [&str; 4] = ["train", "train-selected", "held-out", "held-out-selected"];

/// Returns `output.work`, or a default folder whose name is derived from `output.url`.
pub fn path(config: &PrepConfig) -> PathBuf {
    let url = config.output.url.trim_end_matches('/');
    match (&config.output.work, local_path(url)) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, Some(folder)) => PathBuf::from(format!("{}.work", folder.display())),
        (None, None) => PathBuf::from(format!("lambert-prep-{}.work", &sha256_hex(url.as_bytes())[..16])),
    }
}

/// Returns the path of a folder that is not in an object store.
pub fn local_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("file://").unwrap_or(url);
    (!path.contains("://")).then(|| PathBuf::from(path))
}

/// Refuses a configured work folder that is the output folder, is in it, or contains it.
pub fn check_apart(config: &PrepConfig, folder: &Path) -> std::result::Result<(), PrepError> {
    let output = Store::open(&config.output.url).ok().and_then(|store| root(&store));
    let (Some(_), Some(output)) = (&config.output.work, output) else { return Ok(()) };
    // An absolute path without `//` is not read as a URL.
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let work = Store::open(&path.to_string_lossy()).map_err(|error| invalid(error.to_string()))?;
    let Some(work) = root(&work).filter(|work| work.starts_with(&output) || output.starts_with(work)) else {
        return Ok(());
    };
    Err(invalid(format!(
        "{} and the folder of output.url, {}, must not contain each other, because the work folder is removed at the end; \
         name a folder beside it",
        work.display(),
        output.display()
    )))
}

/// Folder of a local store, without links and `..`.
fn root(store: &Store) -> Option<PathBuf> {
    store.local_path("train").ok()??.parent().map(ToOwned::to_owned)
}

/// Refuses an existing folder with files, unless they belong to a preparation.
pub fn check_own(folder: &Path) -> std::result::Result<(), PrepError> {
    let io_error = |source| PrepError::WorkIo { operation: "list", path: folder.to_owned(), source };
    match first_other(folder).map_err(io_error)? {
        // Another process may just have written it.
        Some(other) if !is_job(folder) => Err(invalid(format!(
            "{} holds files that are not from a preparation, such as {}; name a new or empty folder",
            folder.display(),
            other.display()
        ))),
        _ => Ok(()),
    }
}

/// True if the folder has a `job.json` of a preparation.
pub fn is_job(folder: &Path) -> bool {
    std::fs::read(folder.join(JOB_FILE)).is_ok_and(|bytes| job_file::is_job_file(&bytes))
}

/// Returns the first entry that a preparation does not create before its `job.json`.
fn first_other(folder: &Path) -> Result<Option<PathBuf>> {
    for name in names(folder)? {
        let path = folder.join(&name);
        if name == SPILL_FOLDER && path.is_dir() {
            if let Some(other) = names(&path)?.into_iter().find(|name| !is_temporary(name)) {
                return Ok(Some(path.join(other)));
            }
        } else if !lock::is_lock_file(&name) && !is_temporary(&name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Removes what a preparation has created in the folder, `job.json` last, and the folder if it is then empty. If the process is
/// killed meanwhile, `job.json` still identifies the remaining files. The next run of the job then removes them.
pub fn remove(folder: &Path) -> std::result::Result<(), PrepError> {
    let io_error = |source| PrepError::WorkIo { operation: "remove", path: folder.to_owned(), source };
    remove_files(folder).map_err(io_error)?;
    remove_file(&folder.join(JOB_FILE)).map_err(io_error)?;
    if !remove_empty(folder).map_err(io_error)? {
        tracing::warn!("work folder {} is kept: it holds files that are not from this preparation", folder.display());
    }
    Ok(())
}

fn remove_files(folder: &Path) -> Result<()> {
    for name in names(folder)? {
        let path = folder.join(&name);
        if is_own_file("", &name) {
            remove_file(&path)?;
        } else if is_own_folder(&name) && path.symlink_metadata()?.is_dir() {
            for file in names(&path)?.iter().filter(|file| is_own_file(&name, file)) {
                remove_file(&path.join(file))?;
            }
            remove_empty(&path)?;
        }
    }
    Ok(())
}

/// True for the name of a folder that a preparation creates in its work folder.
fn is_own_folder(name: &str) -> bool {
    name == SPILL_FOLDER || SPLITS.contains(&name.strip_suffix(".done").unwrap_or(name))
}

/// True for the name of a file that a preparation creates in `folder` of its work folder, or, if it is empty, in the work folder.
fn is_own_file(folder: &str, name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    let has_form = |prefixes: &[&str], expected| {
        extension == Some(expected) && prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    is_temporary(name)
        || match folder {
            "" => lock::is_lock_file(name) || has_form(&SPLITS, "samples"),
            SPILL_FOLDER => has_form(&["run-", "read-"], "docs"),
            _ if folder.ends_with(".done") => has_form(&["shard-"], "done"),
            _ => name.starts_with("shard-"),
        }
}

/// True for the name of an unfinished file.
fn is_temporary(name: &str) -> bool {
    name.starts_with(".tmp") || name.ends_with(".unfinished")
}

/// Removes a file, or a folder if it is empty.
fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(_) if path.is_dir() => remove_empty(path).map(drop),
        removed => removed,
    }
}

/// Removes a folder if it is empty. Returns false if it is not.
fn remove_empty(folder: &Path) -> Result<bool> {
    match std::fs::remove_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        // A link to a folder stays, and so does the folder.
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(names(folder)?.is_empty()),
        Err(error) => Err(error),
    }
}

/// Names of the entries of a folder, empty if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

fn invalid(message: String) -> PrepError {
    PrepError::InvalidSetting { key: "output.work".to_owned(), message }
}
