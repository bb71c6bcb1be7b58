//! A shard as a file of this machine, hashed before its first row is used.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use lambert_store::Store;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedFileReader;
use sha2::{Digest, Sha256};

use super::manifest::hex;
use super::{DatasetError, Shard};

/// Bytes of one request to a store.
const PART: u64 = 16 << 20;

/// Opens a shard and checks its sha256; one that is not a file of this machine is copied to a nameless one first.
pub fn open(store: &Store, shard: &Shard) -> Result<SerializedFileReader<Positioned>, DatasetError> {
    let file = match local(store, &shard.path)? {
        Some(path) => {
            let io = |operation| {
                let path = path.clone();
                move |source| DatasetError::Io { operation, path, source }
            };
            let mut file = File::open(&path).map_err(io("open"))?;
            let found = hash(&mut file).map_err(io("read"))?;
            check(store, shard, found)?;
            file
        }
        None => fetch(store, shard)?,
    };
    SerializedFileReader::new(Positioned { file: Arc::new(file), bytes: shard.bytes }).map_err(|source| {
        DatasetError::Parquet {
            operation: "open",
            file: format!("{}/{}", store.url(), shard.path),
            group: None,
            source,
        }
    })
}

/// Re-hashes a shard.
pub fn verify(store: &Store, shard: &Shard) -> Result<(), DatasetError> {
    open(store, shard).map(drop)
}

fn local(store: &Store, path: &str) -> Result<Option<std::path::PathBuf>, DatasetError> {
    store.local_path(path).map_err(|source| DatasetError::Store { url: store.url().to_owned(), source })
}

fn hash(file: &mut File) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn check(store: &Store, shard: &Shard, found: String) -> Result<(), DatasetError> {
    if found == shard.sha256 {
        return Ok(());
    }
    let (url, file) = (store.url().to_owned(), shard.path.clone());
    Err(DatasetError::Damaged { url, file, expected: shard.sha256.clone(), found })
}

fn fetch(store: &Store, shard: &Shard) -> Result<File, DatasetError> {
    let path = std::env::temp_dir();
    let io = |source| DatasetError::Io { operation: "write a copy of a shard in", path: path.clone(), source };
    let mut copy = tempfile::tempfile().map_err(io)?;
    let mut digest = Sha256::new();
    for start in (0..shard.bytes).step_by(PART as usize) {
        let part = store
            .get_range(&shard.path, start..(start + PART).min(shard.bytes))
            .map_err(|source| DatasetError::Store { url: store.url().to_owned(), source })?;
        digest.update(&part);
        copy.write_all(&part).map_err(io)?;
    }
    check(store, shard, hex(&digest.finalize()))?;
    Ok(copy)
}

/// A file read by position, so that threads do not move each other's cursor.
pub struct Positioned {
    file: Arc<File>,
    bytes: u64,
}

/// A cursor of its own over a [`Positioned`].
pub struct Cursor {
    file: Arc<File>,
    at: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Positioned {
    type T = std::io::BufReader<Cursor>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(std::io::BufReader::new(Cursor { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}
