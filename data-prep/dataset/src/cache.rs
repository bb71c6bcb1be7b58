//! Local cache of remote shards. Processes on the same host share the cache if they use the same directory.
//!
//! A cached object is a byte range of a shard or, for datasets without checksums of byte ranges, a whole shard. Its file
//! name is its sha256. An object gets this name once it is complete and verified. If several processes need an object,
//! one of them downloads it. The others wait as long as the download makes progress.
//!
//! If a new object would exceed the capacity, or if the disk is full, the least recently used objects are evicted. A
//! process that opened an object before its eviction can still read it.

mod eviction;
mod lock;

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use lambert_config::run::DatasetCache;
use lambert_store::hash::Hasher;
use lambert_store::{Store, host_paths, private_dir};

use super::ranges::ShardRanges;
use super::{DatasetError, Shard};
use lock::{FetchLock, Timeouts, TryLock};

/// File extension of a cached shard.
const SHARD_EXTENSION: &str = ".parquet";
/// File extension of a cached byte range of a shard.
const RANGE_EXTENSION: &str = ".range";
/// File extension of a lock.
const LOCK_EXTENSION: &str = ".lock";
/// File name prefix of an incomplete download.
const PARTIAL_PREFIX: &str = ".fetch-";
/// Size of a request for a part of a byte range.
const REQUEST_BYTES: u64 = 16 << 20;

/// Cache directory.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// True if the directory is set in the configuration. Other users can then share it.
    is_configured: bool,
    /// Capacity in bytes. An object that is larger than the capacity is still cached.
    limit: u64,
    timeouts: Timeouts,
    /// True after this process has listed the directory. Before, the recorded size is not used, because files may have
    /// been added or removed by hand.
    is_listed: AtomicBool,
}

/// Object in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheObject<'a> {
    shard: &'a str,
    extension: &'static str,
    /// Offsets in the shard.
    pub range: Range<u64>,
    /// Expected sha256.
    pub sha256: String,
}

impl<'a> CacheObject<'a> {
    /// A whole shard.
    pub fn shard(shard: &'a Shard) -> Self {
        Self { shard: &shard.path, extension: SHARD_EXTENSION, range: 0..shard.bytes, sha256: shard.sha256.clone() }
    }

    /// Byte range `index` of a shard.
    pub fn range(shard: &'a Shard, ranges: &ShardRanges, index: usize) -> Self {
        let (range, sha256) = (ranges.range(index), ranges.range_sha256[index].to_string());
        Self { shard: &shard.path, extension: RANGE_EXTENSION, range, sha256 }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn file_name(&self) -> String {
        format!("{}{}", self.sha256, self.extension)
    }

    fn lock_name(&self) -> String {
        format!("{}{LOCK_EXTENSION}", self.sha256)
    }
}

impl Cache {
    /// Uses the configured directory, or the default directory of the user.
    pub fn new(settings: &DatasetCache) -> Self {
        let is_configured = !settings.folder.is_empty();
        let folder = if is_configured { PathBuf::from(&settings.folder) } else { host_paths::dataset_copies() };
        Self {
            folder,
            is_configured,
            limit: (settings.gigabytes * 1e9) as u64,
            timeouts: Timeouts::default(),
            is_listed: AtomicBool::new(false),
        }
    }

    /// Returns the capacity in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Opens the cached copy of an object. Returns `None` if there is no copy or if its size is wrong. The caller must
    /// verify the content.
    pub fn find(&self, object: &CacheObject<'_>) -> Option<File> {
        self.create_folder().ok()?;
        let file = File::open(self.path(object)).ok()?;
        let whole = file.metadata().is_ok_and(|metadata| metadata.len() == object.bytes());
        // The modification time records the last use. An error is harmless. It occurs, for example, if another user
        // owns the file.
        let _ = file.set_modified(SystemTime::now());
        whole.then_some(file)
    }

    /// Removes a damaged copy.
    pub fn discard(&self, object: &CacheObject<'_>) -> Result<(), DatasetError> {
        remove(&self.path(object)).map_err(self.cache_error("remove a damaged file from"))
    }

    /// Downloads an object unless it is cached. If another process is downloading it, waits as long as that download
    /// makes progress. The returned flag is true if this call downloaded the object. It is then already verified.
    pub fn fetch(&self, store: &Store, object: &CacheObject<'_>) -> Result<(File, bool), DatasetError> {
        let file = self.lock_file(&object.lock_name())?;
        let purpose = format!("for the download of {}/{}", store.url(), object.shard);
        let lock = FetchLock::wait(file, self.timeouts, &purpose).map_err(self.cache_error("lock a file in"))?;
        match self.find(object) {
            Some(file) => Ok((file, false)),
            None => self.download(store, object, lock).map(|file| (file, true)),
        }
    }

    /// Downloads an object unless it is cached or another process is downloading it.
    pub fn fetch_ahead(&self, store: &Store, object: &CacheObject<'_>) -> Result<(), DatasetError> {
        if self.find(object).is_some() {
            return Ok(());
        }
        let file = self.lock_file(&object.lock_name())?;
        let lock = FetchLock::try_take(file).map_err(self.cache_error("lock a file in"))?;
        match (lock, self.find(object)) {
            (TryLock::WouldBlock(_), _) | (_, Some(_)) => Ok(()),
            (TryLock::Acquired(lock), None) => self.download(store, object, Some(lock)).map(drop),
        }
    }

    fn path(&self, object: &CacheObject<'_>) -> PathBuf {
        self.folder.join(object.file_name())
    }

    /// Creates the directory. The default directory is accepted only if it is private to this user, because another
    /// user could have created it.
    fn create_folder(&self) -> io::Result<()> {
        if self.is_configured { std::fs::create_dir_all(&self.folder) } else { private_dir::create(&self.folder) }
    }

    fn lock_file(&self, name: &str) -> Result<File, DatasetError> {
        self.create_folder().map_err(self.cache_error("use"))?;
        let path = self.folder.join(name);
        self.evict_on_full_disk(|| lock::open(&path)).map_err(self.cache_error("lock a file in"))
    }

    /// Downloads an object. `lock` is the lock of the object, or `None` if another process holds it and the wait timed
    /// out.
    fn download(
        &self,
        store: &Store,
        object: &CacheObject<'_>,
        mut lock: Option<FetchLock>,
    ) -> Result<File, DatasetError> {
        self.evict_until_fits(object.bytes())?;
        // Other users read the copies in a configured folder.
        let mode = Permissions::from_mode(if self.is_configured { 0o644 } else { 0o600 });
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(PARTIAL_PREFIX).permissions(mode);
        let create = || builder.tempfile_in(&self.folder);
        let mut copy = self.evict_on_full_disk(create).map_err(self.cache_error("write to"))?;
        let (mut hasher, mut written) = (Hasher::new(), Ok(()));
        let take = |piece: &[u8]| {
            hasher.update(piece);
            if written.is_ok() {
                written = self.write(copy.as_file_mut(), piece);
            }
            lock.iter_mut().for_each(FetchLock::progress);
        };
        let url = || store.url().to_owned();
        read(store, object, take).map_err(|source| DatasetError::Store { url: url(), source })?;
        written.map_err(self.cache_error("write to"))?;
        let found = hasher.finish();
        if found != object.sha256 {
            let (file, expected) = (object.shard.to_owned(), object.sha256.clone());
            let range = (object.extension == RANGE_EXTENSION).then(|| object.range.clone());
            return Err(DatasetError::Damaged { url: url(), file, range, expected, found });
        }
        let file = copy.persist(self.path(object)).map_err(|error| self.cache_error("write to")(error.error))?;
        // Removing the lock file is safe. Waiting processes still have it open, acquire its lock, and find the cached
        // copy.
        remove_if_permitted(&self.folder.join(object.lock_name())).map_err(self.cache_error("remove a lock from"))?;
        Ok(file)
    }

    fn write(&self, file: &mut File, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let count = self.evict_on_full_disk(|| file.write(piece))?;
            piece = &piece[count..];
        }
        Ok(())
    }

    /// Returns a function that turns an I/O error of `operation` in the cache directory into a dataset error.
    pub fn cache_error(&self, operation: &'static str) -> impl Fn(io::Error) -> DatasetError {
        let folder = self.folder.clone();
        move |source| DatasetError::Cache { operation, folder: folder.clone(), source }
    }
}

/// Passes the bytes of an object to `take`, in order.
fn read(store: &Store, object: &CacheObject<'_>, mut take: impl FnMut(&[u8])) -> lambert_store::error::Result<()> {
    if object.extension == SHARD_EXTENSION {
        return store.read_pieces(object.shard, object.bytes(), take);
    }
    let mut start = object.range.start;
    while start < object.range.end {
        let end = object.range.end.min(start + REQUEST_BYTES);
        take(&store.get_range(object.shard, start..end)?);
        start = end;
    }
    Ok(())
}

/// Removes a file, unless it belongs to another user. Returns true if the file is gone.
fn remove_if_permitted(path: &Path) -> io::Result<bool> {
    match remove(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
