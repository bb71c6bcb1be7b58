//! Opens shards, and verifies what is read from them.
//!
//! In a dataset with checksums of byte ranges, a shard is opened with its footer, and each row group is verified when it
//! is first read. Datasets of earlier versions have only the checksum of the whole file, which is verified on opening.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_store::Store;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use sha2::{Digest as _, Sha256};

use super::cache::{Cache, CacheObject};
use super::panics::catch_panics;
use super::ranges::{Digest, ShardRanges};
use super::shard_file::{Identity, ShardFile, identity};
use super::{DatasetError, Shard};

/// Open shard.
pub struct ShardReader {
    /// Content of the footer.
    pub metadata: ParquetMetaData,
    /// Local file. Contains only the footer if `in_pieces` is true.
    file: ShardFile,
    /// True if each row group is a file of its own in the cache.
    in_pieces: bool,
}

/// Opens the shards of a dataset.
#[derive(Clone, Copy)]
pub struct ShardOpener<'a> {
    /// Store of the dataset.
    pub store: &'a Store,
    /// Cache for remote shards.
    pub cache: &'a Cache,
}

impl ShardOpener<'_> {
    /// Opens a shard and returns the identity of its file. `checked` identifies a file that was verified at an earlier
    /// open. A file that is verified as a whole is not verified again if it is that file.
    pub fn open(self, shard: &Shard, checked: Option<Identity>) -> Result<(ShardReader, Identity), DatasetError> {
        let path = local(self.store, &shard.path)?;
        let in_pieces = path.is_none() && shard.ranges.is_some();
        let whole = |file| ShardFile::whole(Arc::new(file), shard.bytes);
        let file = match (&shard.ranges, path) {
            (None, Some(path)) => whole(self.verified(shard, path, checked)?),
            (None, None) => whole(self.cached(shard, &CacheObject::shard(shard), checked)?),
            (Some(ranges), Some(path)) => {
                let file = whole(File::open(&path).map_err(io("open", path))?);
                let footer = file.narrowed(ranges.range(ranges.len() - 1));
                self.check_range(shard, ranges, ranges.len() - 1, &footer, |_| {})?;
                file
            }
            (Some(ranges), None) => self.cached_range(shard, ranges, ranges.len() - 1, None)?,
        };
        let found = file.identity().map_err(io("read", shard.path.clone().into()))?;
        let metadata = catch_panics(|| ParquetMetaDataReader::new().parse_and_finish(&file));
        let name = || format!("{}/{}", self.store.url(), shard.path);
        let fault = |source| DatasetError::Parquet { operation: "open", file: name(), group: None, source };
        Ok((ShardReader { metadata: metadata.map_err(fault)?, file, in_pieces }, found))
    }

    /// Returns the file with row group `index` of a shard. Verifies the row group, unless `verified` is the identity of
    /// the file. Then stores the identity in `verified`.
    pub fn row_group(
        self,
        shard: &Shard,
        reader: &ShardReader,
        index: usize,
        verified: &AtomicU64,
    ) -> Result<ShardFile, DatasetError> {
        let Some(ranges) = &shard.ranges else { return Ok(reader.file.clone()) };
        let identity = |file: &ShardFile| file.identity().map_err(io("read", shard.path.clone().into()));
        let checked = verified.load(Ordering::Relaxed);
        let file = if reader.in_pieces {
            self.cached_range(shard, ranges, index, Some(checked))?
        } else {
            let file = reader.file.narrowed(ranges.range(index));
            if identity(&file)? != checked {
                self.check_range(shard, ranges, index, &file, |_| {})?;
            }
            file
        };
        verified.store(identity(&file)?, Ordering::Relaxed);
        Ok(file)
    }

    /// Verifies all ranges of a shard and the whole file.
    pub fn verify(self, shard: &Shard, reader: &ShardReader) -> Result<(), DatasetError> {
        // Otherwise the file was verified on opening.
        let Some(ranges) = &shard.ranges else { return Ok(()) };
        let mut whole = Sha256::new();
        for index in 0..ranges.len() {
            let file = match reader.in_pieces {
                true => self.cached_range(shard, ranges, index, None)?,
                false => reader.file.narrowed(ranges.range(index)),
            };
            self.check_range(shard, ranges, index, &file, |piece| whole.update(piece))?;
        }
        let found = Digest(whole.finalize().into()).to_string();
        if found != shard.sha256 { Err(self.damaged(shard, None, &shard.sha256, &found)) } else { Ok(()) }
    }

    /// Downloads what [`ShardOpener::open`] reads of a remote shard, unless it is cached or another process is
    /// downloading it.
    pub fn prefetch(self, shard: &Shard) -> Result<(), DatasetError> {
        let object = match &shard.ranges {
            None => CacheObject::shard(shard),
            Some(ranges) => CacheObject::range(shard, ranges, ranges.len() - 1),
        };
        self.cache.fetch_ahead(self.store, &object)
    }

    /// Downloads row group `index` of a remote shard, unless it is cached or another process is downloading it.
    pub fn prefetch_row_group(self, shard: &Shard, index: usize) -> Result<(), DatasetError> {
        let Some(ranges) = &shard.ranges else { return Ok(()) };
        self.cache.fetch_ahead(self.store, &CacheObject::range(shard, ranges, index))
    }

    /// Opens a local shard and verifies its checksum, unless it is the file `checked`.
    fn verified(self, shard: &Shard, path: PathBuf, checked: Option<Identity>) -> Result<File, DatasetError> {
        let file = File::open(&path).map_err(io("open", path.clone()))?;
        if Some(identity(&file).map_err(io("read", path.clone()))?) != checked {
            let found = self.sha256(&file, shard.bytes).map_err(io("read", path))?;
            if found != shard.sha256 {
                return Err(self.damaged(shard, None, &shard.sha256, &found));
            }
        }
        Ok(file)
    }

    /// Returns the verified copy of range `index` of a remote shard.
    fn cached_range(
        self,
        shard: &Shard,
        ranges: &ShardRanges,
        index: usize,
        checked: Option<Identity>,
    ) -> Result<ShardFile, DatasetError> {
        let file = self.cached(shard, &CacheObject::range(shard, ranges, index), checked)?;
        Ok(ShardFile::part(file, ranges.range(index), shard.bytes))
    }

    /// Returns the cached copy of `object`, which belongs to `shard`. Downloads it if the copy is missing or damaged.
    /// Verifies the copy, unless it is the file `checked` or this process has downloaded it.
    fn cached(
        self,
        shard: &Shard,
        object: &CacheObject<'_>,
        checked: Option<Identity>,
    ) -> Result<File, DatasetError> {
        let sound = |file: &File| -> std::io::Result<bool> {
            Ok(Some(identity(file)?) == checked || self.sha256(file, object.bytes())? == object.sha256)
        };
        if let Some(file) = self.cache.find(object) {
            if matches!(sound(&file), Ok(true)) {
                return Ok(file);
            }
            self.cache.discard(object)?;
        }
        let (file, is_verified) = self.cache.fetch(self.store, object)?;
        if !is_verified {
            let found = self.sha256(&file, object.bytes()).map_err(self.cache.cache_error("read a file in"))?;
            if found != object.sha256 {
                let range = shard.ranges.is_some().then(|| object.range.clone());
                return Err(self.damaged(shard, range, &object.sha256, &found));
            }
        }
        Ok(file)
    }

    /// Checks the sha256 of range `index`, which `file` contains. Passes the bytes to `take`.
    fn check_range(
        self,
        shard: &Shard,
        ranges: &ShardRanges,
        index: usize,
        file: &ShardFile,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), DatasetError> {
        let report = |piece: &[u8]| {
            take(piece);
            self.store.report_transferred(piece.len() as u64);
        };
        let found = file.sha256(report).map_err(io("read", shard.path.clone().into()))?;
        let expected = ranges.sha256[index];
        match found == expected {
            true => Ok(()),
            false => {
                let range = Some(ranges.range(index));
                Err(self.damaged(shard, range, &expected.to_string(), &found.to_string()))
            }
        }
    }

    /// Returns the sha256 of the first `bytes` bytes of a file. Reports them to the observer of the store.
    fn sha256(self, file: &File, bytes: u64) -> std::io::Result<String> {
        let file = ShardFile::whole(Arc::new(file.try_clone()?), bytes);
        file.sha256(|piece| self.store.report_transferred(piece.len() as u64)).map(|digest| digest.to_string())
    }

    fn damaged(
        self,
        shard: &Shard,
        range: Option<std::ops::Range<u64>>,
        expected: &str,
        found: &str,
    ) -> DatasetError {
        let (url, file) = (self.store.url().to_owned(), shard.path.clone());
        DatasetError::Damaged { url, file, range, expected: expected.to_owned(), found: found.to_owned() }
    }
}

/// Returns the local path of a file of the dataset, or `None` if the dataset is in an object store.
pub fn local(store: &Store, path: &str) -> Result<Option<PathBuf>, DatasetError> {
    store.local_path(path).map_err(|source| DatasetError::Store { url: store.url().to_owned(), source })
}

/// Returns a function that turns an I/O error of `operation` into a dataset error.
fn io(operation: &'static str, path: PathBuf) -> impl FnOnce(std::io::Error) -> DatasetError {
    move |source| DatasetError::Io { operation, path, source }
}
