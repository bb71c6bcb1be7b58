//! Files that a command writes.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use lambert_store::output_file::OutputFile;

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: std::io::Error,
}

/// Writes `content` to `path`, which gets the content when it is complete; see [`OutputFile`].
pub fn write<T>(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<OutputFile>) -> std::io::Result<T>,
) -> Result<T, WriteError> {
    whole(path, content).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn whole<T>(path: &Path, content: impl FnOnce(&mut BufWriter<OutputFile>) -> std::io::Result<T>) -> std::io::Result<T> {
    let mut output = BufWriter::new(OutputFile::create(path)?);
    let result = content(&mut output)?;
    output.flush()?;
    output.into_inner().map_err(std::io::IntoInnerError::into_error)?.finish()?;
    Ok(result)
}
