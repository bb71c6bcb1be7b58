//! Temporary folder of a command, and a worker that reads it. Neither outlives the command, which a signal may end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lambert_progress::signals::clean_up_before_exit;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::run::launch::processes::{ExitSignal, end_with_parent};

/// Interval between looks at the worker.
const POLL: Duration = Duration::from_millis(20);
/// Time between SIGTERM and SIGKILL to the worker.
const GRACE: Duration = Duration::from_secs(2);
/// Time for the removal of the folder, in which other threads still create files.
const REMOVAL: Duration = Duration::from_secs(2);

/// A temporary folder. If a signal ends this process, the worker ends and the folder is removed first.
pub struct Scratch {
    path: PathBuf,
    held: Arc<Mutex<Held>>,
}

struct Held {
    folder: Option<TempDir>,
    worker: Option<Child>,
}

impl Scratch {
    /// Creates the folder.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().to_owned();
        let held = Arc::new(Mutex::new(Held { folder: Some(folder), worker: None }));
        let by_signal = Arc::clone(&held);
        clean_up_before_exit(move || {
            let mut held = lock(&by_signal);
            held.end();
            // The main thread does not continue. The signal ends it.
            std::mem::forget(held);
        });
        Ok(Self { path, held })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a worker. Call this function on the main thread.
    pub fn run(&self, mut command: Command) -> io::Result<ExitStatus> {
        end_with_parent(&mut command, ExitSignal::Terminate);
        {
            let mut held = lock(&self.held);
            held.worker = Some(command.spawn()?);
        }
        loop {
            if let Some(status) = lock(&self.held).ended()? {
                return Ok(status);
            }
            sleep(POLL);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(lock(&self.held).folder.take());
    }
}

impl Held {
    /// Exit status of the worker once it has ended.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.worker.as_mut().map_or(Ok(None), Child::try_wait)?;
        if status.is_some() {
            self.worker = None;
        }
        Ok(status)
    }

    /// Ends the worker and removes the folder.
    fn end(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            if let Some(pid) = i32::try_from(worker.id()).ok().and_then(Pid::from_raw) {
                // The worker may have received the signal too.
                let _ = kill_process(pid, Signal::TERM);
            }
            let deadline = Instant::now() + GRACE;
            while matches!(worker.try_wait(), Ok(None)) && Instant::now() < deadline {
                sleep(POLL);
            }
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let Some(folder) = self.folder.take() else { return };
        let deadline = Instant::now() + REMOVAL;
        while std::fs::remove_dir_all(folder.path()).is_err() && folder.path().exists() && Instant::now() < deadline {
            sleep(POLL);
        }
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
