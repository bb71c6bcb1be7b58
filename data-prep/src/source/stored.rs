//! Reads the raw bytes of an input file, before decompression, and hashes them with SHA-256.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Take};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_store::Store;
use sha2::{Digest, Sha256};

use super::read_ahead::ReadAhead;
use super::{SourceError, SourceFile};
use lambert_dataset::hex;

/// Buffer size for skipped bytes, which are hashed but not returned.
const SKIP_BUFFER_BYTES: usize = 1 << 20;

/// A handle to an open file. Clones share the position and the hash.
#[derive(Clone)]
pub struct StoredReader(Arc<Mutex<HashedStream>>);

struct HashedStream {
    inner: Box<dyn Read + Send>,
    counter: Arc<AtomicU64>,
    sha256: Sha256,
    read: u64,
    expected: u64,
}

/// An I/O error of the disk or the object store. Unlike corrupt input, such an error is never skipped.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StorageError(pub Error);

impl StoredReader {
    /// Opens `file`. `counter` counts the bytes that were read. Up to `memory` bytes of an object are read ahead.
    ///
    /// # Errors
    /// The file or the store cannot be opened.
    pub fn open(file: &SourceFile, counter: Arc<AtomicU64>, memory: u64) -> std::result::Result<Self, SourceError> {
        let inner = if file.is_remote() {
            let (folder, object) = file.name.rsplit_once('/').unwrap_or(("", &file.name));
            let store = Store::open(folder).map_err(|source| SourceError::Store { url: file.name.clone(), source })?;
            Box::new(ReadAhead::new(store, object, file.bytes, memory)) as Box<dyn Read + Send>
        } else {
            let open_error = |source| SourceError::Input { path: file.name.clone(), operation: "open", source };
            Box::new(local(file).map_err(open_error)?)
        };
        let bytes = HashedStream { inner, counter, sha256: Sha256::new(), read: 0, expected: file.bytes };
        Ok(Self(Arc::new(Mutex::new(bytes))))
    }

    /// Reads and hashes the file up to byte `end`.
    pub fn skip_to(&self, end: u64) -> Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; SKIP_BUFFER_BYTES.min(end.saturating_sub(bytes.read) as usize)];
        while bytes.read < end {
            let count = buffer.len().min((end - bytes.read) as usize);
            if bytes.read(&mut buffer[..count])? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads the rest of the file and returns the SHA-256 of the file.
    pub fn finish(&self) -> Result<String> {
        self.skip_to(u64::MAX)?;
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.read != bytes.expected {
            let (read, expected) = (bytes.read, bytes.expected);
            return Err(Error::other(format!(
                "the size changed while reading: expected {expected} bytes, read {read}"
            )));
        }
        Ok(hex(&bytes.sha256.clone().finalize()))
    }
}

impl Read for StoredReader {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(buffer)
    }
}

impl HashedStream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = loop {
            match self.inner.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result.map_err(|error| Error::new(error.kind(), StorageError(error)))?,
            }
        };
        self.sha256.update(&buffer[..count]);
        self.read += count as u64;
        self.counter.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

fn local(file: &SourceFile) -> Result<Take<File>> {
    let mut opened = File::open(&file.name)?;
    opened.seek(SeekFrom::Start(file.start))?;
    Ok(opened.take(file.bytes))
}
