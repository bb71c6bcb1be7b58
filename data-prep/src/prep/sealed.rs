//! Files of the work folder: a body, then JSON that says what is in it, then the JSON's length.
//!
//! They are written under another name and renamed when they are complete and on the disk: one that is there is whole.

use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepError;

/// Ends every such file.
const MAGIC: u64 = u64::from_le_bytes(*b"lambert1");

/// Writes `path`: `body` writes the body and gives what the JSON shall say.
pub fn write<T: Serialize>(
    path: &Path,
    body: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<T>,
) -> Result<T, PrepError> {
    whole(path, |file| {
        let mut output = BufWriter::with_capacity(1 << 20, file);
        let about = body(&mut output)?;
        let json = serde_json::to_vec(&about)?;
        output.write_all(&json)?;
        output.write_all(&(json.len() as u64).to_le_bytes())?;
        output.write_all(&MAGIC.to_le_bytes())?;
        output.flush()?;
        Ok(about)
    })
}

/// Writes `path` by `content` under another name first, which no other process can come upon: neither process numbers
/// nor host names tell processes in containers apart.
pub fn whole<T>(path: &Path, content: impl FnOnce(&File) -> std::io::Result<T>) -> Result<T, PrepError> {
    let attempt = || {
        let folder = path.parent().unwrap_or(path);
        let readable = Permissions::from_mode(0o644);
        let file = tempfile::Builder::new().suffix(".unfinished").permissions(readable).tempfile_in(folder)?;
        let result = content(file.as_file())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(result)
    };
    attempt().map_err(|source| PrepError::Work { operation: "write", path: path.to_owned(), source })
}

/// Moves a file to its place, over the border of a file system if need be: there it is whole or not at all.
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

/// A file that was written by [`write()`]. It is opened for each reading: there may be more of them than descriptors.
pub struct Sealed {
    path: PathBuf,
}

impl Sealed {
    /// Reads what the JSON of `path` says.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Self, T), PrepError> {
        let fault = |source| PrepError::Work { operation: "read", path: path.to_owned(), source };
        let damaged = || PrepError::Damaged { path: path.to_owned() };
        let bytes = std::fs::metadata(path).map_err(fault)?.len();
        let sealed = Self { path: path.to_owned() };
        let tail = sealed.read(bytes.checked_sub(16).ok_or_else(damaged)?, 16)?;
        let word = |at: usize| tail[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let start = (bytes - 16).checked_sub(word(0)).filter(|_| word(8) == MAGIC).ok_or_else(damaged)?;
        let json = sealed.read(start, word(0) as usize)?;
        Ok((sealed, serde_json::from_slice(&json).map_err(|_| damaged())?))
    }

    /// Bytes of the body.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, PrepError> {
        let mut buffer = vec![0; length];
        let read = self.file()?.read_exact_at(&mut buffer, at);
        read.map_err(|source| PrepError::Work { operation: "read", path: self.path.clone(), source })?;
        Ok(buffer)
    }

    /// The file, for many readings.
    pub fn file(&self) -> Result<File, PrepError> {
        File::open(&self.path).map_err(|source| PrepError::Work { operation: "read", path: self.path.clone(), source })
    }
}
