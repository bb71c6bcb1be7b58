//! Files of the work folder. Each file has a body, a JSON trailer that describes the body, the length of the trailer,
//! and a magic number.
//!
//! A file is written under a temporary name, synced and renamed. So a file under its final name is complete.

use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepError;

/// Last eight bytes of a work file.
const MAGIC: u64 = u64::from_le_bytes(*b"lambert1");

/// Writes the file `path`. The function `body` writes the body and returns the JSON trailer.
pub fn write<T: Serialize>(
    path: &Path,
    body: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<T>,
) -> Result<T, PrepError> {
    write_atomically(path, |file| {
        let mut output = BufWriter::with_capacity(1 << 20, file);
        let contents = body(&mut output)?;
        let json = serde_json::to_vec(&contents)?;
        output.write_all(&json)?;
        output.write_all(&(json.len() as u64).to_le_bytes())?;
        output.write_all(&MAGIC.to_le_bytes())?;
        output.flush()?;
        Ok(contents)
    })
}

/// Writes `path` through a uniquely named temporary file. Process IDs and host names are not unique across containers,
/// so the name is random.
pub fn write_atomically<T>(path: &Path, content: impl FnOnce(&File) -> std::io::Result<T>) -> Result<T, PrepError> {
    let attempt = || {
        let folder = path.parent().unwrap_or(path);
        let readable = Permissions::from_mode(0o644);
        let file = tempfile::Builder::new().suffix(".unfinished").permissions(readable).tempfile_in(folder)?;
        let result = content(file.as_file())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(result)
    };
    attempt().map_err(|source| PrepError::WorkIo { operation: "write", path: path.to_owned(), source })
}

/// Moves a file atomically. Copies the file if the target is on another file system.
pub fn move_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let folder = to.parent().unwrap_or(to);
    std::fs::create_dir_all(folder)?;
    if std::fs::rename(from, to).is_ok() {
        return Ok(());
    }
    let mut copy = tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(folder)?;
    std::io::copy(&mut File::open(from)?, copy.as_file_mut())?;
    copy.as_file().sync_all()?;
    copy.persist(to).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

/// A file written by [`write()`]. Each read opens the file again, because there can be more files than file
/// descriptors.
pub struct WorkFile {
    path: PathBuf,
}

impl WorkFile {
    /// Opens `path` and reads its JSON trailer.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Self, T), PrepError> {
        let io_error = |source| PrepError::WorkIo { operation: "read", path: path.to_owned(), source };
        let damaged = || PrepError::DamagedWorkFile { path: path.to_owned() };
        let bytes = std::fs::metadata(path).map_err(io_error)?.len();
        let sealed = Self { path: path.to_owned() };
        let tail = sealed.read(bytes.checked_sub(16).ok_or_else(damaged)?, 16)?;
        let word = |at: usize| tail[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let start = (bytes - 16).checked_sub(word(0)).filter(|_| word(8) == MAGIC).ok_or_else(damaged)?;
        let json = sealed.read(start, word(0) as usize)?;
        Ok((sealed, serde_json::from_slice(&json).map_err(|_| damaged())?))
    }

    /// Reads `length` bytes at offset `at`.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, PrepError> {
        let mut buffer = vec![0; length];
        let read = self.file()?.read_exact_at(&mut buffer, at);
        read.map_err(|source| PrepError::WorkIo { operation: "read", path: self.path.clone(), source })?;
        Ok(buffer)
    }

    /// Opens the file for repeated reads.
    pub fn file(&self) -> Result<File, PrepError> {
        File::open(&self.path).map_err(|source| PrepError::WorkIo {
            operation: "read",
            path: self.path.clone(),
            source,
        })
    }
}
