//! Expansion of the sources into files, always in the same order.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::prep::Source;
use lambert_store::Store;

use super::format::{FormatRegistry, InputFormat};
use super::{DEFAULT_WINDOW, SourceError, SourceFile, is_url};
use crate::caught::caught;
use crate::extract::Extractor;
use lambert_dataset::parallel::parallel;

/// Lists all files in the order of the sources, sorted by path within each source. `threads` threads inspect them.
pub fn find_files(formats: FormatRegistry, sources: &[Source], threads: usize) -> Result<Vec<SourceFile>, SourceError> {
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let setting = |message| SourceError::Setting { key: format!("source.{index}.format"), message };
        let format = formats.named(&source.format).map_err(setting)?;
        let key = format!("source.{index}.path");
        let found =
            if is_url(&source.path) { remote_objects(&key, &source.path)? } else { local_files(&key, &source.path)? };
        let is_read = |found: &FoundFile| {
            let file = found.name.rsplit('/').next().unwrap_or(&found.name);
            found.name == source.path || !formats.ignores(format, file)
        };
        let found: Vec<FoundFile> = found.into_iter().filter(is_read).collect();
        let inspect_file = |number: usize| inspect(formats, format, index, source, &found[number]);
        for (file, parts) in parallel(threads, found.len(), inspect_file)? {
            for part in parts {
                let (number, bytes) = (files.len() as u32, part.end - part.start);
                files.push(SourceFile { number, start: part.start, bytes, ..file.clone() });
            }
        }
    }
    Ok(files)
}

/// Detects the format of a file and the ranges in which it is read.
fn inspect(
    formats: FormatRegistry,
    format: Option<&'static dyn InputFormat>,
    index: usize,
    source: &Source,
    found: &FoundFile,
) -> Result<(SourceFile, ByteRanges), SourceError> {
    let FoundFile { name, bytes, stamp } = found.clone();
    let (format, extractor) = (format.unwrap_or(formats.text), Extractor::running_text());
    let mut file = SourceFile { source: index, number: 0, name, format, extractor, start: 0, bytes, stamp };
    if source.format.is_auto() {
        file.format = formats.recognize(&file.to_input(source, formats, DEFAULT_WINDOW))?;
    }
    file.extractor = file.format.extractor(&file.to_input(source, formats, DEFAULT_WINDOW))?;
    let parts = file.format.parts(&file)?;
    Ok((file, parts))
}

/// A file or an object of a source.
#[derive(Clone)]
struct FoundFile {
    /// Path or URL.
    name: String,
    /// Size, bytes.
    bytes: u64,
    /// Modification time, or the ETag of an object.
    stamp: String,
}

/// Byte ranges of a file before decompression.
type ByteRanges = Vec<Range<u64>>;

fn no_files(key: &str, pattern: &str, reason: impl ToString) -> SourceError {
    SourceError::NoFiles { key: key.to_owned(), path: pattern.to_owned(), reason: reason.to_string() }
}

fn local_files(key: &str, pattern: &str) -> Result<Vec<FoundFile>, SourceError> {
    let path = Path::new(pattern);
    let mut paths: Vec<PathBuf> = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => files_below(path)?,
        Ok(metadata) if metadata.is_file() => vec![path.to_owned()],
        // Opening a pipe could block, and a device has no end.
        Ok(_) => return Err(no_files(key, pattern, "neither a file nor a folder")),
        // The name of an existing file is not a glob, even if it contains brackets. Any other name is a glob.
        Err(_) if pattern.contains(['*', '?', '[']) => {
            files_that_match(pattern).map_err(|error| error.unwrap_or_else(|reason| no_files(key, pattern, reason)))?
        }
        Err(error) => return Err(no_files(key, pattern, error)),
    };
    if paths.is_empty() {
        return Err(no_files(key, pattern, "no file found"));
    }
    paths.sort();
    let describe = |path: PathBuf| {
        let metadata = std::fs::metadata(&path).map_err(|source| SourceError::Input {
            path: path.display().to_string(),
            operation: "access",
            source,
        })?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let name = path.into_os_string().into_string();
        let name = name.map_err(|name| no_files(key, &name.to_string_lossy(), "file name is not UTF-8"))?;
        let stamp = modified.map_or(0, |since| since.as_nanos()).to_string();
        Ok(FoundFile { name, bytes: metadata.len(), stamp })
    };
    paths.into_iter().map(describe).collect()
}

/// A `*` matches no `/` and no hidden file.
const GLOB: glob::MatchOptions =
    glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

fn cannot_list(path: &Path, source: std::io::Error) -> SourceError {
    SourceError::Input { path: path.display().to_string(), operation: "list", source }
}

/// Lists the files that match a glob.
fn files_that_match(pattern: &str) -> Result<Vec<PathBuf>, Result<SourceError, glob::PatternError>> {
    let mut files = Vec::new();
    let mut checked = HashSet::new();
    let mut found = glob::glob_with(pattern, GLOB).map_err(Err)?;
    // The library panics if a folder has a name that is not UTF-8.
    let not_utf8 = |_| {
        Ok(cannot_list(
            Path::new(pattern),
            std::io::Error::other("a file name in its folder is not UTF-8; rename the file"),
        ))
    };
    while let Some(path) = caught(|| found.next()).map_err(not_utf8)? {
        let path = path.map_err(|error| {
            let folder = error.path().to_owned();
            Ok(cannot_list(&folder, error.into()))
        })?;
        for folder in path.ancestors().skip(1) {
            if checked.insert(folder.to_owned()) {
                refuse_loop(folder).map_err(Ok)?;
            }
        }
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// Refuses a symbolic link to a folder above it: the files below it would be found again and again.
fn refuse_loop(folder: &Path) -> Result<(), SourceError> {
    if !folder.is_symlink() {
        return Ok(());
    }
    let whole = |path: &Path| path.canonicalize().map_err(|source| cannot_list(path, source));
    // The parent of a relative name is the current folder.
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match whole(parent)?.starts_with(whole(folder)?) {
        true => Err(cannot_list(folder, std::io::Error::other("it is a symbolic link to a folder above it"))),
        false => Ok(()),
    }
}

/// Lists every file below a folder, without hidden files, pipes, sockets and devices.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    refuse_loop(folder)?;
    let error = |source| cannot_list(folder, source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let metadata = std::fs::metadata(&path).map_err(|source| SourceError::Input {
            path: path.display().to_string(),
            operation: "access",
            source,
        })?;
        if metadata.is_dir() {
            files.extend(files_below(&path)?);
        } else if metadata.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// Lists a single object, all objects below a prefix, or the objects that match a glob.
fn remote_objects(key: &str, url: &str) -> Result<Vec<FoundFile>, SourceError> {
    let error = |source| SourceError::Store { url: url.to_owned(), source };
    let special = url.find(['*', '?', '[']).unwrap_or(url.len());
    let folder_end = url[..special].rfind('/').unwrap_or(special);
    let (folder, pattern) = (&url[..folder_end], url[folder_end..].trim_start_matches('/'));
    let store = Store::open(folder).map_err(error)?;
    let glob = glob::Pattern::new(pattern).map_err(|error| no_files(key, url, error))?;
    let is_glob = special < url.len();
    let objects = match is_glob || pattern.is_empty() {
        true => store.list("").map_err(error)?,
        // The object of this name, and all objects below it.
        false => {
            let own = store.object(pattern).map_err(error)?;
            own.into_iter().chain(store.list(pattern).map_err(error)?).collect()
        }
    };
    let found: Vec<FoundFile> = objects
        .into_iter()
        .filter(|object| glob.matches_with(&object.path, GLOB) || !is_glob)
        .map(|object| FoundFile { name: format!("{folder}/{}", object.path), bytes: object.bytes, stamp: object.tag })
        .collect();
    if found.is_empty() { Err(no_files(key, url, "no object found")) } else { Ok(found) }
}
