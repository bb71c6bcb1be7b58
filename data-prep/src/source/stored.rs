//! The bytes of an input file as they are stored, and the sha256 of all of them, computed while they go by.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Take};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lambert_store::Store;
use sha2::{Digest, Sha256};

use super::ahead::Ahead;
use super::{SourceError, SourceFile};
use lambert_dataset::hex;

/// Bytes at once where nobody but the hash wants them.
const PASSED: usize = 1 << 20;

/// A handle to a file that is being read; its clones read on from the same place.
#[derive(Clone)]
pub struct Stored(Arc<Mutex<Bytes>>);

struct Bytes {
    inner: Box<dyn Read + Send>,
    counter: Arc<AtomicU64>,
    sha256: Sha256,
    read: u64,
    expected: u64,
}

/// The disk or the store failed, not what it holds: never passed over as damage.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StorageError(pub Error);

impl Stored {
    /// Opens `file`; `counter` grows with the bytes that are read. An object may have `memory` bytes that are read ahead.
    pub fn open(file: &SourceFile, counter: Arc<AtomicU64>, memory: u64) -> std::result::Result<Self, SourceError> {
        let inner = if file.is_remote() {
            let (folder, object) = file.name.rsplit_once('/').unwrap_or(("", &file.name));
            let store = Store::open(folder).map_err(|source| SourceError::Store { url: file.name.clone(), source })?;
            Box::new(Ahead::new(store, object, file.bytes, memory)) as Box<dyn Read + Send>
        } else {
            let fault = |source| SourceError::Input { path: file.name.clone(), operation: "open", source };
            Box::new(local(file).map_err(fault)?)
        };
        let bytes = Bytes { inner, counter, sha256: Sha256::new(), read: 0, expected: file.bytes };
        Ok(Self(Arc::new(Mutex::new(bytes))))
    }

    /// Reads up to byte `end` of the file, if that is ahead.
    pub fn pass(&self, end: u64) -> Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; PASSED.min(end.saturating_sub(bytes.read) as usize)];
        while bytes.read < end {
            let wanted = buffer.len().min((end - bytes.read) as usize);
            if bytes.read(&mut buffer[..wanted])? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads what is left; the sha256 of the whole file.
    pub fn finish(&self) -> Result<String> {
        self.pass(u64::MAX)?;
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.read != bytes.expected {
            let (read, expected) = (bytes.read, bytes.expected);
            return Err(Error::other(format!(
                "it has {read} bytes now and had {expected}: it changes while it is read"
            )));
        }
        Ok(hex(&bytes.sha256.clone().finalize()))
    }
}

impl Read for Stored {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(buffer)
    }
}

impl Bytes {
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
