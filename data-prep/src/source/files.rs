//! Which files a source names, always in the same order.

use std::path::{Path, PathBuf};

use lambert_config::prep::Source;

use crate::prep::PrepError;

/// One input file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Which `[[source]]`, from 0.
    pub source: usize,
    /// Its number among all files of all sources, from 0.
    pub number: u32,
    /// Where it is.
    pub path: PathBuf,
    /// Its size as it is stored.
    pub bytes: u64,
    /// When it was changed, in nanoseconds since 1970; tells a restart whether its work is still good.
    pub modified: u128,
}

/// All files of all sources: the sources in their order, the files of each sorted by path.
pub fn find(sources: &[Source]) -> Result<Vec<SourceFile>, PrepError> {
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let mut paths = paths(index, &source.path)?;
        paths.sort();
        for path in paths {
            let metadata = std::fs::metadata(&path).map_err(|error| PrepError::Input {
                path: path.clone(),
                operation: "look at",
                source: error,
            })?;
            let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            files.push(SourceFile {
                source: index,
                number: files.len() as u32,
                bytes: metadata.len(),
                modified: modified.map_or(0, |since| since.as_nanos()),
                path,
            });
        }
    }
    Ok(files)
}

fn paths(index: usize, pattern: &str) -> Result<Vec<PathBuf>, PrepError> {
    let missing =
        |why: String| PrepError::NoFiles { key: format!("source.{index}.path"), path: pattern.to_owned(), why };
    let path = Path::new(pattern);
    let found = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => below(path)?,
        Ok(_) => return Ok(vec![path.to_owned()]),
        // A name that exists is taken as it stands, even with brackets in it; only then is it a glob.
        Err(_) if pattern.contains(['*', '?', '[']) => {
            let found = glob::glob(pattern).map_err(|error| missing(error.to_string()))?;
            found.filter_map(Result::ok).filter(|path| path.is_file()).collect()
        }
        Err(error) => return Err(missing(error.to_string())),
    };
    if found.is_empty() { Err(missing("no file there".to_owned())) } else { Ok(found) }
}

/// Every file below a folder, hidden ones left out.
fn below(folder: &Path) -> Result<Vec<PathBuf>, PrepError> {
    let fault = |source| PrepError::Input { path: folder.to_owned(), operation: "list", source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if path.is_dir() { files.extend(below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}
