//! Opens a shard, and verifies what is read from it.
//!
//! If the byte ranges of the shard have checksums, the shard is opened with its footer, and each row group is verified
//! when it is first read. Otherwise the whole file is verified on opening.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lambert_store::Store;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use sha2::{Digest as _, Sha256};

use super::cache::{Cache, CacheObject};
use super::digest::Digest;
use super::panics::catch_panics;
use super::ranges::{CHECKSUMS, ShardRanges};
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

/// A shard, and the places where it can be.
#[derive(Clone, Copy)]
pub struct ShardAccess<'a> {
    /// Store of the dataset.
    pub store: &'a Store,
    /// Cache for remote shards.
    pub cache: &'a Cache,
    /// Entry in the manifest.
    pub shard: &'a Shard,
    /// Checksums of the byte ranges, if the dataset has them.
    pub ranges: Option<&'a ShardRanges>,
}

impl ShardAccess<'_> {
    /// Opens the shard and returns the identity of its file. `checked` identifies a file that was verified at an earlier
    /// open. A file that is verified as a whole is not verified again if it is that file.
    pub fn open(self, checked: Option<Identity>) -> Result<(ShardReader, Identity), DatasetError> {
        let path = local(self.store, &self.shard.path)?;
        let in_pieces = path.is_none() && self.ranges.is_some();
        let whole = |file| ShardFile::whole(Arc::new(file), self.shard.bytes);
        let file = match (self.ranges, path) {
            (None, Some(path)) => whole(self.verified(path, checked)?),
            (None, None) => whole(self.cached(&CacheObject::shard(self.shard), checked)?),
            (Some(ranges), Some(path)) => {
                let file = whole(File::open(&path).map_err(io("open", path))?);
                self.check_range(ranges, ranges.footer(), &file.narrowed(ranges.range(ranges.footer())), |_| {})?;
                file
            }
            (Some(ranges), None) => self.cached_range(ranges, ranges.footer(), None)?,
        };
        let found = file.identity().map_err(self.read_error())?;
        let metadata = catch_panics(|| ParquetMetaDataReader::new().parse_and_finish(&file));
        let name = || format!("{}/{}", self.store.url(), self.shard.path);
        let fault = |source| DatasetError::Parquet { operation: "open", file: name(), group: None, source };
        Ok((ShardReader { metadata: metadata.map_err(fault)?, file, in_pieces }, found))
    }

    /// Returns the file with row group `index`. Verifies the row group, unless `verified` is the identity of the file.
    /// Then stores the identity in `verified`.
    pub fn row_group(
        self,
        reader: &ShardReader,
        index: usize,
        verified: &AtomicU64,
    ) -> Result<ShardFile, DatasetError> {
        let Some(ranges) = self.ranges else { return Ok(reader.file.clone()) };
        let checked = verified.load(Ordering::Relaxed);
        let file = if reader.in_pieces {
            self.cached_range(ranges, index, Some(checked))?
        } else {
            let file = reader.file.narrowed(ranges.range(index));
            if file.identity().map_err(self.read_error())? != checked {
                self.check_range(ranges, index, &file, |_| {})?;
            }
            file
        };
        verified.store(file.identity().map_err(self.read_error())?, Ordering::Relaxed);
        Ok(file)
    }

    /// Verifies all ranges and the whole file. If only the checksum of a range is wrong, the error is
    /// [`DatasetError::Checksums`].
    pub fn verify(self, reader: &ShardReader) -> Result<(), DatasetError> {
        // Without ranges, the file was verified on opening.
        let Some(ranges) = self.ranges else { return Ok(()) };
        let mut whole = Sha256::new();
        let mut checks = (0..=ranges.footer()).map(|index| match reader.in_pieces {
            // The copy has been verified, and its bytes reported.
            true => self
                .cached_range(ranges, index, None)?
                .sha256(|piece| whole.update(piece))
                .map(drop)
                .map_err(self.read_error()),
            false => {
                let file = reader.file.narrowed(ranges.range(index));
                self.check_range(ranges, index, &file, |piece| whole.update(piece))
            }
        });
        let damaged = checks.find_map(Result::err);
        drop(checks);
        match damaged {
            None => self.check_whole(whole),
            Some(DatasetError::Damaged { range: Some(range), expected, found, .. }) => {
                let mut whole = Sha256::new();
                let read = self.store.read_pieces(&self.shard.path, self.shard.bytes, |piece| whole.update(piece));
                read.map_err(|source| DatasetError::Store { url: self.store.url().to_owned(), source })?;
                match self.check_whole(whole) {
                    Ok(()) => Err(self.wrong_checksum(&range, &expected, &found)),
                    Err(_) => Err(self.damaged(Some(range), &expected, &found)),
                }
            }
            Some(error) => Err(error),
        }
    }

    fn check_whole(self, digest: Sha256) -> Result<(), DatasetError> {
        let found = Digest(digest.finalize().into()).to_string();
        if found == self.shard.sha256 { Ok(()) } else { Err(self.damaged(None, &self.shard.sha256, &found)) }
    }

    fn wrong_checksum(self, range: &Range<u64>, expected: &str, found: &str) -> DatasetError {
        let (name, start, end) = (&self.shard.path, range.start, range.end.saturating_sub(1));
        let message = format!("{name} is intact, but bytes {start} to {end} have the sha256 {found}, not {expected}");
        DatasetError::Checksums { file: format!("{}/{CHECKSUMS}", self.store.url()), message }
    }

    /// Downloads what [`ShardAccess::open`] reads of a remote shard, unless it is cached or another process is
    /// downloading it.
    pub fn prefetch(self) -> Result<(), DatasetError> {
        let object = match self.ranges {
            None => CacheObject::shard(self.shard),
            Some(ranges) => CacheObject::range(self.shard, ranges, ranges.footer()),
        };
        self.cache.fetch_ahead(self.store, &object)
    }

    /// Downloads row group `index` of a remote shard, unless it is cached or another process is downloading it.
    pub fn prefetch_row_group(self, index: usize) -> Result<(), DatasetError> {
        let Some(ranges) = self.ranges else { return Ok(()) };
        self.cache.fetch_ahead(self.store, &CacheObject::range(self.shard, ranges, index))
    }

    /// Opens a local shard and verifies its checksum, unless it is the file `checked`.
    fn verified(self, path: PathBuf, checked: Option<Identity>) -> Result<File, DatasetError> {
        let file = File::open(&path).map_err(io("open", path.clone()))?;
        if Some(identity(&file).map_err(io("read", path.clone()))?) != checked {
            let found = self.sha256(&file, self.shard.bytes).map_err(io("read", path))?;
            if found != self.shard.sha256 {
                return Err(self.damaged(None, &self.shard.sha256, &found));
            }
        }
        Ok(file)
    }

    /// Returns the verified copy of range `index` of a remote shard.
    fn cached_range(
        self,
        ranges: &ShardRanges,
        index: usize,
        checked: Option<Identity>,
    ) -> Result<ShardFile, DatasetError> {
        let file = self.cached(&CacheObject::range(self.shard, ranges, index), checked)?;
        Ok(ShardFile::part(file, ranges.range(index), self.shard.bytes))
    }

    /// Returns the cached copy of `object`. Downloads it if the copy is missing or damaged. Verifies the copy, unless it
    /// is the file `checked` or this process has downloaded it.
    fn cached(self, object: &CacheObject<'_>, checked: Option<Identity>) -> Result<File, DatasetError> {
        let is_intact = |file: &File| -> std::io::Result<bool> {
            Ok(Some(identity(file)?) == checked || self.sha256(file, object.bytes())? == object.sha256)
        };
        if let Some(file) = self.cache.find(object) {
            if matches!(is_intact(&file), Ok(true)) {
                return Ok(file);
            }
            self.cache.discard(object)?;
        }
        let (file, is_verified) = self.cache.fetch(self.store, object)?;
        if !is_verified {
            let found = self.sha256(&file, object.bytes()).map_err(self.cache.cache_error("read a file in"))?;
            if found != object.sha256 {
                let range = self.ranges.is_some().then(|| object.range.clone());
                return Err(self.damaged(range, &object.sha256, &found));
            }
        }
        Ok(file)
    }

    /// Checks the sha256 of range `index`, which `file` contains. Passes the bytes to `take`.
    fn check_range(
        self,
        ranges: &ShardRanges,
        index: usize,
        file: &ShardFile,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), DatasetError> {
        let report = |piece: &[u8]| {
            take(piece);
            self.store.report_transferred(piece.len() as u64);
        };
        let found = file.sha256(report).map_err(self.read_error())?;
        let expected = ranges.range_sha256[index];
        if found == expected {
            return Ok(());
        }
        Err(self.damaged(Some(ranges.range(index)), &expected.to_string(), &found.to_string()))
    }

    /// Returns the sha256 of the first `bytes` bytes of a file. Reports them to the observer of the store.
    fn sha256(self, file: &File, bytes: u64) -> std::io::Result<String> {
        let file = ShardFile::whole(Arc::new(file.try_clone()?), bytes);
        file.sha256(|piece| self.store.report_transferred(piece.len() as u64)).map(|digest| digest.to_string())
    }

    fn damaged(self, range: Option<Range<u64>>, expected: &str, found: &str) -> DatasetError {
        let (url, file) = (self.store.url().to_owned(), self.shard.path.clone());
        DatasetError::Damaged { url, file, range, expected: expected.to_owned(), found: found.to_owned() }
    }

    fn read_error(self) -> impl FnOnce(std::io::Error) -> DatasetError {
        io("read", format!("{}/{}", self.store.url(), self.shard.path).into())
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
