//! Lock of a shard during its download. The lock file contains the name of the holder. The holder updates the
//! modification time of the file to show progress.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Initial and maximum delay between lock attempts.
const BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// Interval of progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Timeouts of the wait for a lock whose holder makes no progress.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Time without progress until a warning.
    pub report: Duration,
    /// Time without progress until the waiting process continues without the lock.
    pub stalled: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { report: Duration::from_secs(10), stalled: Duration::from_secs(60) }
    }
}

/// File lock, released on drop. On file systems without locks, it does not exclude other processes.
#[derive(Debug)]
pub struct FetchLock {
    file: File,
    last_signal: Instant,
}

/// Result of a non-blocking lock attempt.
#[derive(Debug)]
pub enum TryLock {
    /// This process holds the lock.
    Acquired(FetchLock),
    /// Another process holds the lock. The file is returned for another attempt.
    WouldBlock(File),
}

/// Opens a lock file, or creates it. Another user of a shared cache could have put a link there, and the holder writes
/// to the lock file. The file of another user may be read-only.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or has several hard links.
pub fn open(path: &Path) -> io::Result<File> {
    let refused = |what: &str| {
        let path = path.display();
        io::Error::other(format!("{path} is {what}, expected a regular file with a single hard link; remove it"))
    };
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).custom_flags(no_follow);
    let file = match options.open(path) {
        // The file of another user. A lock needs no permission to write. Without `NONBLOCK`, a pipe would block.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
            File::options().read(true).custom_flags(flags).open(path)
        }
        opened => opened,
    };
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => refused("a symbolic link"),
        _ => error,
    })?;
    let found = file.metadata()?;
    match found.nlink() {
        _ if !found.is_file() => return Err(refused("not a regular file")),
        // Another process has just removed the lock file.
        0 | 1 => {}
        links => return Err(refused(&format!("a file with {links} hard links"))),
    }
    // Other users of the folder lock the file, too. Only its owner can change its mode.
    let _ = file.set_permissions(Permissions::from_mode(0o666));
    Ok(file)
}

impl FetchLock {
    /// Tries to lock `file` without waiting.
    pub fn try_take(file: File) -> io::Result<TryLock> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(TryLock::WouldBlock(file)),
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let holder = format!("process {} on host {}", std::process::id(), lambert_store::host::name());
        // The name is used only in messages. So an error, such as a full disk, is ignored.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(holder.as_bytes(), 0));
        Ok(TryLock::Acquired(Self { file, last_signal: Instant::now() }))
    }

    /// Waits for the lock of `file` while its holder makes progress. Returns `None` after [`Timeouts::stalled`] without
    /// progress. `purpose` describes the wait in messages.
    pub fn wait(file: File, timeouts: Timeouts, purpose: &str) -> io::Result<Option<Self>> {
        let (mut file, mut pause, mut reported) = (file, BACKOFF[0], false);
        let (mut progress_time, mut since) = (progress_time(&file)?, Instant::now());
        loop {
            file = match Self::try_take(file)? {
                TryLock::Acquired(lock) => return Ok(Some(lock)),
                TryLock::WouldBlock(file) => file,
            };
            let found = self::progress_time(&file)?;
            if found != progress_time {
                (progress_time, since) = (found, Instant::now());
            }
            let idle = since.elapsed();
            if idle >= timeouts.stalled {
                let seconds = idle.as_secs();
                tracing::warn!("{} has made no progress for {seconds} s; no longer waiting {purpose}", holder(&file));
                return Ok(None);
            }
            if idle >= timeouts.report && !reported {
                tracing::warn!("waiting for {} {purpose}", holder(&file));
                reported = true;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(BACKOFF[1]);
        }
    }

    /// Signals progress to waiting processes.
    pub fn progress(&mut self) {
        if self.last_signal.elapsed() >= PROGRESS_INTERVAL {
            self.last_signal = Instant::now();
            // If this fails, waiting processes time out earlier.
            let _ = self.file.set_modified(SystemTime::now());
        }
    }
}

fn progress_time(file: &File) -> io::Result<SystemTime> {
    file.metadata()?.modified()
}

/// Returns the name of the holder, for messages.
fn holder(file: &File) -> String {
    let mut bytes = [0; 200];
    let length = file.read_at(&mut bytes, 0).unwrap_or(0);
    let text: String = String::from_utf8_lossy(&bytes[..length]).chars().filter(|c| !c.is_control()).collect();
    if text.is_empty() { "another process".to_owned() } else { text }
}

/// True if the file system does not support locks. Then several processes can download the same shard. Each complete
/// copy replaces the previous copy.
fn has_no_locks(error: &io::Error) -> bool {
    let none = [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| none.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Timeouts = Timeouts { report: Duration::from_millis(50), stalled: Duration::from_millis(300) };

    fn open(path: &Path) -> File {
        super::open(path).unwrap()
    }

    fn take(path: &Path) -> FetchLock {
        match FetchLock::try_take(open(path)).unwrap() {
            TryLock::Acquired(lock) => lock,
            TryLock::WouldBlock(_) => panic!("{} is locked", path.display()),
        }
    }

    #[test]
    fn a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [precious, path] = ["precious", "a.lock"].map(|name| folder.path().join(name));
        std::fs::write(&precious, "precious").unwrap();
        let mode = || std::fs::metadata(&precious).unwrap().permissions().mode();
        let before = mode();
        let refused = |what: &str| {
            let error = super::open(&path).unwrap_err().to_string();
            assert!(error.contains("a.lock") && error.contains(what), "{error}");
            std::fs::remove_file(&path).unwrap();
        };
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        refused("is a symbolic link");
        std::fs::hard_link(&precious, &path).unwrap();
        refused("is a file with 2 hard links");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        refused("is not a regular file");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert_eq!(mode(), before);
        drop(take(&path));
    }

    #[test]
    fn waiting_ends_if_the_holder_makes_no_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let held = take(&path);
        assert_eq!(
            holder(&open(&path)),
            format!("process {} on host {}", std::process::id(), lambert_store::host::name())
        );
        assert!(matches!(FetchLock::try_take(open(&path)).unwrap(), TryLock::WouldBlock(_)));
        let start = Instant::now();
        assert!(FetchLock::wait(open(&path), SHORT, "for a").unwrap().is_none());
        assert!((SHORT.stalled..SHORT.stalled * 10).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(held);
        assert!(FetchLock::wait(open(&path), SHORT, "for a").unwrap().is_some());
    }

    #[test]
    fn waiting_continues_while_the_holder_makes_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let mut held = take(&path);
        let waiting = std::thread::spawn({
            let file = open(&path);
            move || FetchLock::wait(file, SHORT, "for a").unwrap().is_some()
        });
        for _ in 0..20 {
            std::thread::sleep(SHORT.stalled / 6);
            held.last_signal -= PROGRESS_INTERVAL;
            held.progress();
        }
        assert!(!waiting.is_finished());
        drop(held);
        assert!(waiting.join().unwrap());
    }
}
