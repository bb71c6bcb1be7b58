//! Room in the cache: evicts the least recently used objects, and keeps a record of the size of all objects.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::lock::{self, FetchLock};
use super::{Cache, LOCK_EXTENSION, PARTIAL_PREFIX, RANGE_EXTENSION, SHARD_EXTENSION, remove_if_permitted};
use crate::DatasetError;
use crate::error::is_full;

/// Age above which an incomplete download or a lock counts as abandoned. The age is the time since the last write.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Name of the lock file for eviction.
const EVICTION_LOCK: &str = "room.lock";
/// Name of the file with the size of all cached objects. Protected by [`EVICTION_LOCK`].
const USED_BYTES: &str = "room.bytes";
/// Maximum size of [`USED_BYTES`].
const MAX_RECORD_BYTES: u64 = 32;
/// Purpose of a wait for [`EVICTION_LOCK`], in messages.
const EVICTION_PURPOSE: &str = "for cache eviction";
/// A full cache is reduced by 1/`EVICTED_PART`, so that not every download has to evict.
const EVICTED_PART: u64 = 20;

/// Last use, bytes and path of a cached object.
type CachedFile = (SystemTime, u64, PathBuf);

impl Cache {
    /// Runs an operation that needs disk space. On a full disk, evicts the least recently used objects and retries.
    pub(super) fn evict_on_full_disk<T>(&self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            let error = match work() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_full(&error) => error,
                other => return other,
            };
            // Without the lock, eviction is also correct, but several threads can evict more than necessary.
            let file = lock::open(&self.folder.join(EVICTION_LOCK));
            let mut lock = file.and_then(|file| FetchLock::wait(file, self.timeouts, EVICTION_PURPOSE)).ok().flatten();
            // Another thread may have evicted objects during the wait.
            match work() {
                Err(second) if is_full(&second) => {}
                other => return other,
            }
            // If eviction fails, the reported error is still the full disk.
            if self.evict_on_full(&mut lock).unwrap_or(0) == 0 {
                return Err(error);
            }
        }
    }

    /// Evicts a part of the objects, at least one. Returns the number of evicted bytes.
    fn evict_on_full(&self, lock: &mut Option<FetchLock>) -> Result<u64, DatasetError> {
        let copies = self.copies(lock)?;
        let used: u64 = copies.iter().map(|(_, bytes, _)| bytes).sum();
        let freed = self.remove_oldest(copies, (used / EVICTED_PART).max(1), lock)?;
        self.record(used - freed);
        tracing::info!("disk full at {}: evicted {:.1} MB", self.folder.display(), freed as f64 / 1e6);
        Ok(freed)
    }

    /// Evicts the least recently used objects until the cache has room for another `bytes` bytes. Lists the directory
    /// only at the first call and when the cache is full, because it can have hundreds of thousands of files.
    pub(super) fn evict_until_fits(&self, bytes: u64) -> Result<(), DatasetError> {
        // If the holder of the lock is suspended, the wait times out, and this process evicts without the lock.
        // Concurrent eviction is harmless.
        let mut lock = FetchLock::wait(self.lock_file(EVICTION_LOCK)?, self.timeouts, EVICTION_PURPOSE)
            .map_err(self.cache_error("lock a file in"))?;
        let recorded = if self.is_listed.load(Ordering::Relaxed) { self.recorded_bytes() } else { None };
        let recorded = recorded.map(|used| used.saturating_add(bytes)).filter(|used| *used <= self.limit);
        let used = match recorded {
            Some(used) => used,
            None => self.evict(bytes, &mut lock)?,
        };
        self.record(used);
        self.is_listed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Lists the cached objects. If there is no room for another `bytes` bytes, evicts the least recently used objects.
    /// Returns the size of the remaining objects plus `bytes`.
    fn evict(&self, bytes: u64, lock: &mut Option<FetchLock>) -> Result<u64, DatasetError> {
        let copies = self.copies(lock)?;
        let used = copies.iter().map(|(_, bytes, _)| bytes).sum::<u64>().saturating_add(bytes);
        if used <= self.limit {
            return Ok(used);
        }
        // With some free space, the next download does not have to list the directory again.
        let target = self.limit - self.limit / EVICTED_PART;
        Ok(used - self.remove_oldest(copies, used - target, lock)?)
    }

    /// Removes objects until `bytes` bytes are free, in the order of `copies`. Returns the size of the removed objects. Skips
    /// objects of other users that this user may not remove.
    fn remove_oldest(
        &self,
        copies: Vec<CachedFile>,
        bytes: u64,
        lock: &mut Option<FetchLock>,
    ) -> Result<u64, DatasetError> {
        let mut freed = 0;
        for (_, size, path) in copies {
            if freed >= bytes {
                break;
            }
            lock.iter_mut().for_each(FetchLock::progress);
            if remove_if_permitted(&path).map_err(self.cache_error("evict a file from"))? {
                freed += size;
            }
        }
        Ok(freed)
    }

    /// Size of all objects according to [`USED_BYTES`].
    fn recorded_bytes(&self) -> Option<u64> {
        let mut text = String::new();
        let file = lock::open(&self.folder.join(USED_BYTES)).ok()?;
        file.take(MAX_RECORD_BYTES).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }

    /// Records the size of all objects. After an error the record is not a number, and the next process lists the directory.
    fn record(&self, used: u64) {
        let text = used.to_string();
        let write = |file: File| file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        let _ = lock::open(&self.folder.join(USED_BYTES)).and_then(write);
    }

    /// Lists the cached objects as (last use, bytes, path), least recently used first. Removes abandoned files.
    fn copies(&self, lock: &mut Option<FetchLock>) -> Result<Vec<CachedFile>, DatasetError> {
        let mut copies = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(self.cache_error("list"))? {
            let entry = entry.map_err(self.cache_error("list"))?;
            lock.iter_mut().for_each(FetchLock::progress);
            // Another process may have removed the file.
            let Ok(metadata) = entry.metadata() else { continue };
            let (name, used) = (entry.file_name(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let name = name.to_string_lossy();
            if [SHARD_EXTENSION, RANGE_EXTENSION].iter().any(|extension| is_object(&name, extension)) {
                copies.push((used, metadata.len(), entry.path()));
            } else if (name.starts_with(PARTIAL_PREFIX) || is_object(&name, LOCK_EXTENSION))
                && used.elapsed().is_ok_and(|age| age > ABANDONED_AFTER)
            {
                remove_if_permitted(&entry.path()).map_err(self.cache_error("remove an abandoned file from"))?;
            }
        }
        copies.sort();
        Ok(copies)
    }
}

/// True if a file of this name belongs to the cache: a SHA-256 and an extension. The folder may have other files.
fn is_object(name: &str, extension: &str) -> bool {
    name.strip_suffix(extension)
        .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
