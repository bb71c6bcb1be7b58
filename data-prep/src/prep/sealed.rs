//! Files of the work folder: a body, then JSON that says what is in it, then the JSON's length.
//!
//! They are written under another name and renamed when they are complete and on the disk: one that is there is whole.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PrepError;

/// Ends every such file.
const MAGIC: u64 = u64::from_le_bytes(*b"lambert1");

/// Writes `path`: `body` writes the body and gives what the JSON shall say.
pub fn write<T: Serialize>(
    path: &Path,
    body: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<T>,
) -> Result<T, PrepError> {
    let unfinished = path.with_extension("unfinished");
    let attempt = || {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished)?);
        let about = body(&mut file)?;
        let json = serde_json::to_vec(&about)?;
        file.write_all(&json)?;
        file.write_all(&(json.len() as u64).to_le_bytes())?;
        file.write_all(&MAGIC.to_le_bytes())?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        Ok(about)
    };
    attempt().map_err(|source| PrepError::Work { operation: "write", path: path.to_owned(), source })
}

/// A file that was written by [`write()`].
pub struct Sealed {
    file: File,
    path: PathBuf,
}

impl Sealed {
    /// Opens `path` and reads what its JSON says.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Self, T), PrepError> {
        let fault = |source| PrepError::Work { operation: "read", path: path.to_owned(), source };
        let damaged = || PrepError::Damaged { path: path.to_owned() };
        let file = File::open(path).map_err(fault)?;
        let bytes = file.metadata().map_err(fault)?.len();
        let sealed = Self { file, path: path.to_owned() };
        let tail = sealed.read(bytes.checked_sub(16).ok_or_else(damaged)?, 16)?;
        let word = |at: usize| tail[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let start = (bytes - 16).checked_sub(word(0)).filter(|_| word(8) == MAGIC).ok_or_else(damaged)?;
        let json = sealed.read(start, word(0) as usize)?;
        Ok((sealed, serde_json::from_slice(&json).map_err(|_| damaged())?))
    }

    /// Bytes of the body.
    pub fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, PrepError> {
        let mut buffer = vec![0; length];
        let read = self.file.read_exact_at(&mut buffer, at);
        read.map_err(|source| PrepError::Work { operation: "read", path: self.path.clone(), source })?;
        Ok(buffer)
    }
}
