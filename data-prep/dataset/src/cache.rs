//! Copies of remote shards on this host, shared by all processes on it that use the same folder.
//!
//! A copy's name is its sha256: it gets that name when it is whole and verified. One process fetches a shard while the others that
//! want it wait, as long as it makes progress. When a new copy would go beyond the limit, or the disk is full, those that were used
//! least recently go first; a process that has one open goes on reading it.

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

/// What the name of a copy ends with.
const COPY: &str = ".parquet";
/// What the name of a lock ends with.
const LOCK: &str = ".lock";
/// What the name of a copy begins with that is not whole yet.
const PARTIAL: &str = ".fetch-";
/// The lock of those that make room.
const ROOM: &str = "room.lock";
/// A partial copy that nobody has written to for so long has lost its writer, and a lock its owner.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder with copies of shards.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    /// Whether the settings name the folder, which may then be other users', too.
    named: bool,
    /// Bytes of all copies at most, if that is more than one.
    limit: u64,
    timeouts: Timeouts,
}

impl Cache {
    /// The folder that the settings name, or this user's usual one.
    pub fn new(settings: &DatasetCache) -> Self {
        let named = !settings.folder.is_empty();
        let folder = if named { PathBuf::from(&settings.folder) } else { host_paths::dataset_copies() };
        Self { folder, named, limit: (settings.gigabytes * 1e9) as u64, timeouts: Timeouts::default() }
    }

    /// Bytes of all copies at most.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// A shard's copy as it lies here, if it does; whoever reads it checks it.
    pub fn find(&self, shard: &Shard) -> Option<File> {
        self.create_folder().ok()?;
        let file = File::open(self.path(shard)).ok()?;
        let whole = file.metadata().is_ok_and(|metadata| metadata.len() == shard.bytes);
        // The time of the last use. Where another user owns the copy it stays as it is.
        let _ = file.set_modified(SystemTime::now());
        whole.then_some(file)
    }

    /// Removes a copy that is not what it should be.
    pub fn discard(&self, shard: &Shard) -> Result<(), DatasetError> {
        remove(&self.path(shard)).map_err(self.fault("remove a damaged copy from"))
    }

    /// Fetches a shard unless its copy is there. While another process fetches it and makes progress, this one waits. Also says
    /// whether it was fetched, and so verified, just now.
    pub fn fetch(&self, store: &Store, shard: &Shard) -> Result<(File, bool), DatasetError> {
        let file = self.lock_file(&lock_name(shard))?;
        let purpose = format!("for a copy of {}/{}", store.url(), shard.path);
        let lock = FetchLock::wait(file, self.timeouts, &purpose).map_err(self.fault("lock a file in"))?;
        match self.find(shard) {
            Some(file) => Ok((file, false)),
            None => self.copy(store, shard, lock).map(|file| (file, true)),
        }
    }

    /// Fetches a shard unless its copy is there or another process is about it.
    pub fn fetch_ahead(&self, store: &Store, shard: &Shard) -> Result<(), DatasetError> {
        let file = self.lock_file(&lock_name(shard))?;
        let lock = FetchLock::try_take(file).map_err(self.fault("lock a file in"))?;
        match (lock, self.find(shard)) {
            (TryLock::WouldBlock(_), _) | (_, Some(_)) => Ok(()),
            (TryLock::Acquired(lock), None) => self.copy(store, shard, Some(lock)).map(drop),
        }
    }

    fn path(&self, shard: &Shard) -> PathBuf {
        self.folder.join(format!("{}{COPY}", shard.sha256))
    }

    /// The usual folder must be this user's alone: anybody could have created it.
    fn create_folder(&self) -> io::Result<()> {
        if self.named { std::fs::create_dir_all(&self.folder) } else { private_dir::create(&self.folder) }
    }

    fn lock_file(&self, name: &str) -> Result<File, DatasetError> {
        self.create_folder().map_err(self.fault("use"))?;
        let path = self.folder.join(name);
        let open = || File::options().create(true).truncate(false).read(true).write(true).open(&path);
        self.with_space(open).map_err(self.fault("lock a file in"))
    }

    /// Fetches a copy; `lock` is that of the shard, if another process has not kept it too long.
    fn copy(&self, store: &Store, shard: &Shard, mut lock: Option<FetchLock>) -> Result<File, DatasetError> {
        self.make_room(shard.bytes)?;
        let create = || tempfile::Builder::new().prefix(PARTIAL).tempfile_in(&self.folder);
        let mut copy = self.with_space(create).map_err(self.fault("write to"))?;
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
        written.map_err(self.fault("write to"))?;
        let found = hasher.finish();
        if found != shard.sha256 {
            let (file, expected) = (shard.path.clone(), shard.sha256.clone());
            return Err(DatasetError::Damaged { url: url(), file, expected, found });
        }
        let file = copy.persist(self.path(shard)).map_err(|error| self.fault("write to")(error.error))?;
        // Whoever waits for its lock has the file, and finds the copy.
        remove(&self.folder.join(lock_name(shard))).map_err(self.fault("remove a lock from"))?;
        Ok(file)
    }

    fn write(&self, file: &mut File, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let count = self.with_space(|| file.write(piece))?;
            piece = &piece[count..];
        }
        Ok(())
    }

    /// Does something that takes space; where the disk has none, the least recently used copies are removed until it has.
    fn with_space<T>(&self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match work() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => {
                    // Whatever keeps a copy from being removed: the disk is full, and that is what has to be reported.
                    let copies = self.copies().unwrap_or_default();
                    let Some((_, _, oldest)) = copies.first().filter(|(_, _, path)| remove(path).is_ok()) else {
                        return Err(error);
                    };
                    tracing::info!("{} is full: removed the copy {}", self.folder.display(), oldest.display());
                }
                other => return other,
            }
        }
    }

    /// Removes what was used least recently, until `bytes` more fit in.
    fn make_room(&self, bytes: u64) -> Result<(), DatasetError> {
        // Who keeps the lock too long has been stopped: two that remove copies do no harm.
        let purpose = "to make room for copies of datasets";
        let _lock =
            FetchLock::wait(self.lock_file(ROOM)?, self.timeouts, purpose).map_err(self.fault("lock a file in"))?;
        let copies = self.copies()?;
        let mut all: u64 = copies.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, freed, path) in copies {
            if all.saturating_add(bytes) <= self.limit {
                break;
            }
            remove(&path).map_err(self.fault("remove a copy from"))?;
            all -= freed;
        }
        Ok(())
    }

    /// When each copy was used last, its bytes and its path, the least recently used first. Removes what lost processes left.
    fn copies(&self) -> Result<Vec<(SystemTime, u64, PathBuf)>, DatasetError> {
        let mut copies = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(self.fault("list"))? {
            let entry = entry.map_err(self.fault("list"))?;
            // Another process may have removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            let (name, used) = (entry.file_name(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let name = name.to_string_lossy();
            if name.ends_with(COPY) {
                copies.push((used, metadata.len(), entry.path()));
            } else if (name.starts_with(PARTIAL) || name.ends_with(LOCK) && name != ROOM)
                && used.elapsed().is_ok_and(|age| age > ABANDONED)
            {
                remove(&entry.path()).map_err(self.fault("remove a partial copy from"))?;
            }
        }
        copies.sort();
        Ok(copies)
    }

    /// What went wrong with the folder.
    pub fn fault(&self, operation: &'static str) -> impl Fn(io::Error) -> DatasetError {
        let folder = self.folder.clone();
        move |source| DatasetError::Cache { operation, folder: folder.clone(), source }
    }
}

fn lock_name(shard: &Shard) -> String {
    format!("{}{LOCK}", shard.sha256)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
