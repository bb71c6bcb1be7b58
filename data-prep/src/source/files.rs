//! Which files the sources name, always in the same order.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lambert_config::prep::{Format, Source};
use lambert_store::Store;

use super::{SourceError, multistream, recognize};
use crate::extract::wikitext::Site;
use crate::parallel::parallel;

/// One input file, or a run of whole bzip2 streams of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Which `[[source]]`, from 0.
    pub source: usize,
    /// Its number among all files of all sources, from 0.
    pub number: u32,
    /// Its path or URL.
    pub name: String,
    /// What it holds: as configured, or as its first bytes show.
    pub format: Format,
    /// Of a dump: what its wiki calls things.
    pub site: Arc<Site>,
    /// Where it starts in the stored file; 0 unless the file was divided.
    pub start: u64,
    /// Its size as it is stored.
    pub bytes: u64,
    /// Changes when the file does: nanoseconds since 1970, or what a store calls the e_tag. Says when to look twice,
    /// and decides nothing.
    pub stamp: String,
}

impl SourceFile {
    /// Whether this lies in an object store.
    pub fn is_remote(&self) -> bool {
        is_url(&self.name)
    }
}

/// All files of all sources: the sources in their order, the files of each sorted by path. `threads` look at them.
pub fn find(sources: &[Source], threads: usize) -> Result<Vec<SourceFile>, SourceError> {
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let key = format!("source.{index}.path");
        let found = if is_url(&source.path) { remote(&key, &source.path)? } else { local(&key, &source.path)? };
        let found: Found = found.into_iter().filter(|(name, ..)| !is_index(source, name)).collect();
        for (file, parts) in parallel(threads, found.len(), |number| look_at(index, source, &found[number]))? {
            for part in parts {
                let (number, bytes) = (files.len() as u32, part.end - part.start);
                files.push(SourceFile { number, start: part.start, bytes, ..file.clone() });
            }
        }
    }
    Ok(files)
}

/// A file and the parts that it is read in.
fn look_at(index: usize, source: &Source, found: &(String, u64, String)) -> Result<(SourceFile, Parts), SourceError> {
    let (name, bytes, stamp) = found.clone();
    let (format, site) = (source.format, Arc::default());
    let mut file = SourceFile { source: index, number: 0, name, format, site, start: 0, bytes, stamp };
    if file.format == Format::Auto {
        file.format = recognize::format(&file, source)?;
    }
    if file.format == Format::Wikipedia {
        file.site = Arc::new(recognize::site(&file, source)?);
    }
    let parts = match file.format {
        Format::Wikipedia if !file.is_remote() => multistream::divide(Path::new(&file.name), bytes)?,
        _ => std::iter::once(0..bytes).collect(),
    };
    Ok((file, parts))
}

/// Whether this is the index that comes with a multistream dump: no text, and not needed (see [`multistream`]).
fn is_index(source: &Source, name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let dumps = matches!(source.format, Format::Wikipedia | Format::Auto);
    dumps && name != source.path && file.contains("multistream-index")
}

fn is_url(path: &str) -> bool {
    path.contains("://")
}

type Found = Vec<(String, u64, String)>;
/// Ranges of stored bytes.
type Parts = Vec<Range<u64>>;

fn no_files(key: &str, pattern: &str, why: impl ToString) -> SourceError {
    SourceError::NoFiles { key: key.to_owned(), path: pattern.to_owned(), why: why.to_string() }
}

fn local(key: &str, pattern: &str) -> Result<Found, SourceError> {
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
        Ok((name, metadata.len(), modified.map_or(0, |since| since.as_nanos()).to_string()))
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
fn remote(key: &str, url: &str) -> Result<Found, SourceError> {
    let fault = |source| SourceError::Store { url: url.to_owned(), source };
    let special = url.find(['*', '?', '[']).unwrap_or(url.len());
    let folder_end = url[..special].rfind('/').unwrap_or(special);
    let (folder, pattern) = (&url[..folder_end], url[folder_end..].trim_start_matches('/'));
    let store = Store::open(folder).map_err(fault)?;
    let glob = glob::Pattern::new(pattern).map_err(|error| no_files(key, url, error))?;
    let below = format!("{}/", pattern.trim_end_matches('/'));
    let found: Found = store
        .list("")
        .map_err(fault)?
        .into_iter()
        .filter(|object| glob.matches(&object.path) || pattern.is_empty() || object.path.starts_with(&below))
        .map(|object| (format!("{folder}/{}", object.path), object.bytes, object.tag))
        .collect();
    if found.is_empty() { Err(no_files(key, url, "no object there")) } else { Ok(found) }
}
