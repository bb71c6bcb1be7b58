//! Local cache of remote shards. Processes on the same host share the cache if they use the same directory.
//!
//! The file name of a cached shard is its sha256. A shard gets this name once it is complete and verified. If several
//! processes need a shard, one of them downloads it. The others wait as long as the download makes progress.
//!
//! If a new shard would exceed the capacity, or if the disk is full, the least recently used shards are evicted. A
//! process that opened a shard before its eviction can still read it.

mod lock;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lambert_config::run::DatasetCache;
use lambert_store::hash::Hasher;
use lambert_store::{Store, host_paths, private_dir};

use super::error::is_full;
use super::{DatasetError, Shard};
use lock::{FetchLock, Timeouts, TryLock};

/// File extension of a cached shard.
const SHARD_EXTENSION: &str = ".parquet";
/// File extension of a lock.
const LOCK_EXTENSION: &str = ".lock";
/// File name prefix of an incomplete download.
const PARTIAL_PREFIX: &str = ".fetch-";
/// Name of the lock file for eviction.
const EVICTION_LOCK: &str = "room.lock";
/// Age above which an incomplete download or a lock counts as abandoned. The age is the time since the last write.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    /// True if the directory is set in the configuration. Other users can then share it.
    is_configured: bool,
    /// Capacity in bytes. A shard that is larger than the capacity is still cached.
    limit: u64,
    timeouts: Timeouts,
}

impl Cache {
    /// Uses the configured directory, or the default directory of the user.
    pub fn new(settings: &DatasetCache) -> Self {
        let is_configured = !settings.folder.is_empty();
        let folder = if is_configured { PathBuf::from(&settings.folder) } else { host_paths::dataset_copies() };
        Self { folder, is_configured, limit: (settings.gigabytes * 1e9) as u64, timeouts: Timeouts::default() }
    }

    /// Returns the capacity in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Opens the cached copy of a shard. Returns `None` if there is no copy or if its size is wrong. The caller must
    /// verify the content.
    pub fn find(&self, shard: &Shard) -> Option<File> {
        self.create_folder().ok()?;
        let file = File::open(self.path(shard)).ok()?;
        let whole = file.metadata().is_ok_and(|metadata| metadata.len() == shard.bytes);
        // The modification time records the last use. An error is harmless. It occurs, for example, if another user
        // owns the file.
        let _ = file.set_modified(SystemTime::now());
        whole.then_some(file)
    }

    /// Removes a damaged copy.
    pub fn discard(&self, shard: &Shard) -> Result<(), DatasetError> {
        remove(&self.path(shard)).map_err(self.cache_error("remove a damaged shard from"))
    }

    /// Downloads a shard unless it is cached. If another process is downloading the shard, waits as long as that
    /// download makes progress. The returned flag is true if this call downloaded the shard. The shard is then already
    /// verified.
    pub fn fetch(&self, store: &Store, shard: &Shard) -> Result<(File, bool), DatasetError> {
        let file = self.lock_file(&lock_name(shard))?;
        let purpose = format!("for the download of {}/{}", store.url(), shard.path);
        let lock = FetchLock::wait(file, self.timeouts, &purpose).map_err(self.cache_error("lock a file in"))?;
        match self.find(shard) {
            Some(file) => Ok((file, false)),
            None => self.download(store, shard, lock).map(|file| (file, true)),
        }
    }

    /// Downloads a shard unless it is cached or another process is downloading it.
    pub fn fetch_ahead(&self, store: &Store, shard: &Shard) -> Result<(), DatasetError> {
        let file = self.lock_file(&lock_name(shard))?;
        let lock = FetchLock::try_take(file).map_err(self.cache_error("lock a file in"))?;
        match (lock, self.find(shard)) {
            (TryLock::WouldBlock(_), _) | (_, Some(_)) => Ok(()),
            (TryLock::Acquired(lock), None) => self.download(store, shard, Some(lock)).map(drop),
        }
    }

    fn path(&self, shard: &Shard) -> PathBuf {
        self.folder.join(format!("{}{SHARD_EXTENSION}", shard.sha256))
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

    /// Downloads a shard. `lock` is the lock of the shard, or `None` if another process holds it and the wait timed
    /// out.
    fn download(&self, store: &Store, shard: &Shard, mut lock: Option<FetchLock>) -> Result<File, DatasetError> {
        self.evict_until_fits(shard.bytes)?;
        let create = || tempfile::Builder::new().prefix(PARTIAL_PREFIX).tempfile_in(&self.folder);
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
        store
            .read_pieces(&shard.path, shard.bytes, take)
            .map_err(|source| DatasetError::Store { url: url(), source })?;
        written.map_err(self.cache_error("write to"))?;
        let found = hasher.finish();
        if found != shard.sha256 {
            let (file, expected) = (shard.path.clone(), shard.sha256.clone());
            return Err(DatasetError::Damaged { url: url(), file, expected, found });
        }
        let file = copy.persist(self.path(shard)).map_err(|error| self.cache_error("write to")(error.error))?;
        // Removing the lock file is safe. Waiting processes still have it open, acquire its lock, and find the cached
        // shard.
        remove(&self.folder.join(lock_name(shard))).map_err(self.cache_error("remove a lock from"))?;
        Ok(file)
    }

    fn write(&self, file: &mut File, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let count = self.evict_on_full_disk(|| file.write(piece))?;
            piece = &piece[count..];
        }
        Ok(())
    }

    /// Runs an operation that needs disk space. On a full disk, evicts the least recently used shards and retries.
    fn evict_on_full_disk<T>(&self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match work() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => {
                    // If eviction fails, the reported error is still the full disk.
                    let copies = self.copies().unwrap_or_default();
                    let Some((_, _, oldest)) = copies.first().filter(|(_, _, path)| remove(path).is_ok()) else {
                        return Err(error);
                    };
                    tracing::info!("disk full at {}: evicted cached shard {}", self.folder.display(), oldest.display());
                }
                other => return other,
            }
        }
    }

    /// Evicts the least recently used shards until the cache has room for another `bytes` bytes.
    fn evict_until_fits(&self, bytes: u64) -> Result<(), DatasetError> {
        // If the holder of the lock is suspended, the wait times out, and this process evicts without the lock.
        // Concurrent eviction is harmless.
        let purpose = "for cache eviction";
        let _lock = FetchLock::wait(self.lock_file(EVICTION_LOCK)?, self.timeouts, purpose)
            .map_err(self.cache_error("lock a file in"))?;
        let copies = self.copies()?;
        let mut all: u64 = copies.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, freed, path) in copies {
            if all.saturating_add(bytes) <= self.limit {
                break;
            }
            remove(&path).map_err(self.cache_error("evict a shard from"))?;
            all -= freed;
        }
        Ok(())
    }

    /// Lists the cached shards as (last use, bytes, path), least recently used first. Removes abandoned files.
    fn copies(&self) -> Result<Vec<(SystemTime, u64, PathBuf)>, DatasetError> {
        let mut copies = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(self.cache_error("list"))? {
            let entry = entry.map_err(self.cache_error("list"))?;
            // Another process may have removed the file.
            let Ok(metadata) = entry.metadata() else { continue };
            let (name, used) = (entry.file_name(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let name = name.to_string_lossy();
            if is_shard_file(&name, SHARD_EXTENSION) {
                copies.push((used, metadata.len(), entry.path()));
            } else if (name.starts_with(PARTIAL_PREFIX) || is_shard_file(&name, LOCK_EXTENSION))
                && used.elapsed().is_ok_and(|age| age > ABANDONED_AFTER)
            {
                remove(&entry.path()).map_err(self.cache_error("remove an abandoned file from"))?;
            }
        }
        copies.sort();
        Ok(copies)
    }

    /// Returns a function that turns an I/O error of `operation` in the cache directory into a dataset error.
    pub fn cache_error(&self, operation: &'static str) -> impl Fn(io::Error) -> DatasetError {
        let folder = self.folder.clone();
        move |source| DatasetError::Cache { operation, folder: folder.clone(), source }
    }
}

/// True if a file of this name belongs to the cache: the SHA-256 of a shard, and an extension. The folder may have other files.
fn is_shard_file(name: &str, extension: &str) -> bool {
    name.strip_suffix(extension)
        .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn lock_name(shard: &Shard) -> String {
    format!("{}{LOCK_EXTENSION}", shard.sha256)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
