//! Which files the sources name, always in the same order.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lambert_config::prep::Source;
use lambert_store::Store;

use super::format::{InputFormat, Registry};
use super::{SourceError, SourceFile, WINDOW, is_url};
use crate::extract::Extractor;
use lambert_dataset::parallel::parallel;

/// All files of all sources: the sources in their order, the files of each sorted by path. `threads` look at them.
pub fn find(formats: Registry, sources: &[Source], threads: usize) -> Result<Vec<SourceFile>, SourceError> {
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let setting = |message| SourceError::Setting { key: format!("source.{index}.format"), message };
        let format = formats.named(&source.format).map_err(setting)?;
        let key = format!("source.{index}.path");
        let found = if is_url(&source.path) { remote(&key, &source.path)? } else { local(&key, &source.path)? };
        let is_read = |found: &FoundFile| {
            let file = found.name.rsplit('/').next().unwrap_or(&found.name);
            found.name == source.path || !formats.ignores(format, file)
        };
        let found: Vec<FoundFile> = found.into_iter().filter(is_read).collect();
        let look = |number: usize| look_at(formats, format, index, source, &found[number]);
        for (file, parts) in parallel(threads, found.len(), look)? {
            for part in parts {
                let (number, bytes) = (files.len() as u32, part.end - part.start);
                files.push(SourceFile { number, start: part.start, bytes, ..file.clone() });
            }
        }
    }
    Ok(files)
}

/// A file and the parts that it is read in.
fn look_at(
    formats: Registry,
    format: Option<&'static dyn InputFormat>,
    index: usize,
    source: &Source,
    found: &FoundFile,
) -> Result<(SourceFile, Parts), SourceError> {
    let FoundFile { name, bytes, stamp } = found.clone();
    let (format, extractor) = (format.unwrap_or(formats.text), Extractor::running_text());
    let mut file = SourceFile { source: index, number: 0, name, format, extractor, start: 0, bytes, stamp };
    if source.format.is_auto() {
        file.format = formats.recognize(&file.with(source, formats, WINDOW))?;
    }
    file.extractor = file.format.extractor(&file.with(source, formats, WINDOW))?;
    let parts = file.format.parts(&file)?;
    Ok((file, parts))
}

/// A file or an object that a source names.
#[derive(Clone)]
struct FoundFile {
    /// Path or URL.
    name: String,
    /// Its size.
    bytes: u64,
    /// The time of its last change, or the object's tag: differs after a change.
    stamp: String,
}

/// Ranges of stored bytes.
type Parts = Vec<Range<u64>>;

fn no_files(key: &str, pattern: &str, why: impl ToString) -> SourceError {
    SourceError::NoFiles { key: key.to_owned(), path: pattern.to_owned(), why: why.to_string() }
}

fn local(key: &str, pattern: &str) -> Result<Vec<FoundFile>, SourceError> {
    let path = Path::new(pattern);
    let mut paths: Vec<PathBuf> = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => below(path)?,
        Ok(metadata) if metadata.is_file() => vec![path.to_owned()],
        // A pipe would be waited for, a device has no end.
        Ok(_) => return Err(no_files(key, pattern, "neither a file nor a folder")),
        // A name that exists is taken as it stands, even with brackets in it; only then is it a glob.
        Err(_) if pattern.contains(['*', '?', '[']) => {
            let found = glob::glob(pattern).map_err(|error| no_files(key, pattern, error))?;
            found.filter_map(Result::ok).filter(|path| path.is_file()).collect()
        }
        Err(error) => return Err(no_files(key, pattern, error)),
    };
    if paths.is_empty() {
        return Err(no_files(key, pattern, "no file there"));
    }
    paths.sort();
    let describe = |path: PathBuf| {
        let metadata = std::fs::metadata(&path).map_err(|source| SourceError::Input {
            path: path.display().to_string(),
            operation: "look at",
            source,
        })?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let name = path.into_os_string().into_string();
        let name = name.map_err(|name| no_files(key, &name.to_string_lossy(), "the file's name is not UTF-8"))?;
        let stamp = modified.map_or(0, |since| since.as_nanos()).to_string();
        Ok(FoundFile { name, bytes: metadata.len(), stamp })
    };
    paths.into_iter().map(describe).collect()
}

/// Every file below a folder; hidden ones, pipes, sockets and devices left out.
fn below(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let fault = |source| SourceError::Input { path: folder.display().to_string(), operation: "list", source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let metadata = std::fs::metadata(&path).map_err(|source| SourceError::Input {
            path: path.display().to_string(),
            operation: "look at",
            source,
        })?;
        if metadata.is_dir() {
            files.extend(below(&path)?);
        } else if metadata.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// Objects: one, all below a prefix, or those that a glob names.
fn remote(key: &str, url: &str) -> Result<Vec<FoundFile>, SourceError> {
    let fault = |source| SourceError::Store { url: url.to_owned(), source };
    let special = url.find(['*', '?', '[']).unwrap_or(url.len());
    let folder_end = url[..special].rfind('/').unwrap_or(special);
    let (folder, pattern) = (&url[..folder_end], url[folder_end..].trim_start_matches('/'));
    let store = Store::open(folder).map_err(fault)?;
    let glob = glob::Pattern::new(pattern).map_err(|error| no_files(key, url, error))?;
    let below = format!("{}/", pattern.trim_end_matches('/'));
    let found: Vec<FoundFile> = store
        .list("")
        .map_err(fault)?
        .into_iter()
        .filter(|object| glob.matches(&object.path) || pattern.is_empty() || object.path.starts_with(&below))
        .map(|object| FoundFile { name: format!("{folder}/{}", object.path), bytes: object.bytes, stamp: object.tag })
        .collect();
    if found.is_empty() { Err(no_files(key, url, "no object there")) } else { Ok(found) }
}
