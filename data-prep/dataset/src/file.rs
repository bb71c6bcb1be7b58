//! Opens shards as local files and verifies their checksums before first use.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use bytes::Bytes;
use lambert_store::Store;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedFileReader;
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::manifest::hex;
use super::panics::catch_panics;
use super::{DatasetError, Shard};

/// Parquet reader of a shard.
pub type Reader = SerializedFileReader<ShardFile>;

/// Identity of a local file: device and inode.
pub type Identity = (u64, u64);

/// Opens a shard and returns the identity of its file. Verifies the sha256 of the file, unless `checked` is the
/// identity of this file. `checked` identifies a file that has already been verified. Remote shards are read through
/// `cache`.
pub fn open(
    store: &Store,
    shard: &Shard,
    cache: &Cache,
    checked: Option<Identity>,
) -> Result<(Reader, Identity), DatasetError> {
    let file = match local(store, &shard.path)? {
        Some(path) => {
            let io = |operation| {
                let path = path.clone();
                move |source| DatasetError::Io { operation, path, source }
            };
            let mut file = File::open(&path).map_err(io("open"))?;
            if Some(identity(&file).map_err(io("read"))?) != checked {
                let found = hash(store, &mut file).map_err(io("read"))?;
                check(store, shard, found)?;
            }
            file
        }
        None => copied(store, shard, cache, checked)?,
    };
    let io = |source| DatasetError::Io { operation: "read", path: shard.path.clone().into(), source };
    let found = identity(&file).map_err(io)?;
    let reader = catch_panics(|| SerializedFileReader::new(ShardFile { file: Arc::new(file), bytes: shard.bytes }));
    let file = || format!("{}/{}", store.url(), shard.path);
    let fault = |source| DatasetError::Parquet { operation: "open", file: file(), group: None, source };
    Ok((reader.map_err(fault)?, found))
}

fn identity(file: &File) -> std::io::Result<Identity> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns the cached copy of a shard. Downloads the shard if the copy is missing or damaged.
fn copied(store: &Store, shard: &Shard, cache: &Cache, checked: Option<Identity>) -> Result<File, DatasetError> {
    let sound = |file: &mut File| -> std::io::Result<bool> {
        Ok(Some(identity(file)?) == checked || hash(store, file)? == shard.sha256)
    };
    if let Some(mut file) = cache.find(shard) {
        if matches!(sound(&mut file), Ok(true)) {
            return Ok(file);
        }
        cache.discard(shard)?;
    }
    let (mut file, verified) = cache.fetch(store, shard)?;
    if !verified {
        let found = hash(store, &mut file).map_err(cache.cache_error("read a shard in"))?;
        check(store, shard, found)?;
    }
    Ok(file)
}

/// Returns the local path of a file of the dataset, or `None` if the dataset is in an object store.
pub fn local(store: &Store, path: &str) -> Result<Option<std::path::PathBuf>, DatasetError> {
    store.local_path(path).map_err(|source| DatasetError::Store { url: store.url().to_owned(), source })
}

/// Returns the sha256 of a file. Reports its bytes to the observer of `store`.
fn hash(store: &Store, file: &mut File) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => {
                digest.update(&buffer[..count]);
                store.report_transferred(count as u64);
            }
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

/// File with positional reads, so that threads do not share a file position.
pub struct ShardFile {
    file: Arc<File>,
    bytes: u64,
}

/// Independent position in a [`ShardFile`].
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

impl Length for ShardFile {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for ShardFile {
    type T = std::io::BufReader<Cursor>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(std::io::BufReader::new(Cursor { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            let message = format!("read of {length} bytes at offset {start} exceeds the file size {}", self.bytes);
            return Err(ParquetError::EOF(message));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}
