//! A communicator: every call of it is polled against a limit, and it is aborted once when anything fails.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::library::{Element, Library, Raw, UniqueId};
use crate::{Error, Result, events};

/// Between two polls.
pub const POLL: Duration = Duration::from_micros(50);

/// How long NCCL may take to abort, and no longer than the limit of a sum; after that the communicator is left as it is, for the end of the process.
const ABORT: Duration = Duration::from_secs(5);

/// One rank's end.
pub struct Communicator {
    library: Arc<Library>,
    raw: Raw,
    stall: Duration,
    /// Why it was aborted.
    failed: Option<Error>,
}

impl Communicator {
    /// Connects this rank (its number and the number of ranks) to all others within `stall`.
    pub fn connect(library: &Arc<Library>, place: (usize, usize), id: UniqueId, stall: Duration) -> Result<Self> {
        let raw = library.begin(place, id)?;
        let mut connected = Self { library: library.clone(), raw, stall, failed: None };
        match connected.settle("ncclCommInitRankConfig") {
            Ok(()) => Ok(connected),
            Err(error) => Err(connected.fail(error)),
        }
    }

    /// Polls until NCCL has done what it was asked for.
    fn settle(&self, operation: &'static str) -> Result<()> {
        let begin = Instant::now();
        while !self.library.is_settled(operation, self.raw)? {
            if begin.elapsed() >= self.stall {
                return Err(Error::Deadline { operation, missing: Vec::new() });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// An error that has come since, or the one that it was aborted for.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.library.is_settled("all-reduce by NCCL", self.raw).map(drop),
        }
    }

    /// Gives `stream` a sum in place; it has it when this returns.
    ///
    /// # Safety
    /// As [`Library::all_reduce`].
    pub unsafe fn all_reduce(
        &self,
        address: u64,
        elements: (usize, Element),
        stream: *mut std::ffi::c_void,
    ) -> Result<()> {
        self.check()?;
        // SAFETY: promised by the caller; the communicator was not given back, or `check` had failed.
        unsafe { self.library.all_reduce(self.raw, address, elements, stream)? };
        self.settle("ncclAllReduce")
    }

    /// Why it was aborted, if it was.
    pub fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }

    /// Aborts it for `error`, unless it was; the first error.
    pub fn fail(&mut self, error: Error) -> Error {
        if self.failed.is_none() {
            events::aborted("nccl", &error);
            self.failed = Some(error.clone());
            self.abort();
        }
        self.failed.clone().unwrap_or(error)
    }

    /// NCCL may take as long as it likes: it has a thread of its own, which is awaited for a while.
    fn abort(&self) {
        let (library, raw) = (self.library.clone(), self.raw);
        let (done, aborted) = channel();
        let body = move || drop(done.send(library.abort(raw)));
        if std::thread::Builder::new().name("nccl-abort".into()).spawn(body).is_ok() {
            let _ = aborted.recv_timeout(ABORT.min(self.stall));
        }
    }
}

/// In order where nothing has failed.
impl Drop for Communicator {
    fn drop(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let end = || {
            self.library.finalize(self.raw)?;
            self.settle("ncclCommFinalize")
        };
        match end() {
            Ok(()) => drop(self.library.destroy(self.raw)),
            Err(_) => self.abort(),
        }
    }
}
