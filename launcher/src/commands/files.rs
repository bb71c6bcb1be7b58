//! Atomic file writes.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: std::io::Error,
}

/// Writes `content` to a temporary file and then renames it to `path`. An existing file at `path` remains until the new
/// file is complete.
pub fn write<T>(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<&mut NamedTempFile>) -> std::io::Result<T>,
) -> Result<T, WriteError> {
    whole(path, content).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn whole<T>(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<&mut NamedTempFile>) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(&path);
    std::fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    let mut output = BufWriter::new(&mut file);
    let result = content(&mut output)?;
    output.flush()?;
    drop(output);
    file.as_file().sync_all()?;
    open_to_all(&file)?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(result)
}

/// Lets all users read the file. At first, only its owner can read a temporary file.
fn open_to_all(file: &NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_existing_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        write(&path, |output| output.write_all(b"first")).unwrap();
        let failure = write(&path, |output| {
            output.write_all(b"half of the sec")?;
            Err::<(), _>(std::io::Error::other("no"))
        });
        assert!(failure.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }
}
