//! NCCL communicator. Each call is polled until it completes, with a timeout. The first failure aborts the
//! communicator.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::library::{CommHandle, DataType, NcclLibrary, UniqueId};
use crate::{Error, Result, events};

/// Sleep between two polls.
pub const POLL: Duration = Duration::from_micros(50);

/// Time after the start of a call during which polls follow each other without a sleep. NCCL enqueues an all-reduce on a thread of
/// its own, within less time than a sleep takes.
const SPIN: Duration = Duration::from_micros(200);

/// Waits for the next poll of a call that started `waited` ago.
fn pause(waited: Duration) {
    match sleep_after(waited) {
        Some(sleep) => std::thread::sleep(sleep),
        // Another thread of this core may be the one that completes the call.
        None => std::thread::yield_now(),
    }
}

fn sleep_after(waited: Duration) -> Option<Duration> {
    (waited >= SPIN).then_some(POLL)
}

/// Maximum wait for `ncclCommAbort`. The stall timeout limits this wait, too. An abort that takes longer continues in
/// the background.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the device of a rank current for the calling thread.
pub type EnterDevice = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// NCCL communicator of one rank.
pub struct NcclCommunicator {
    library: Arc<NcclLibrary>,
    handle: CommHandle,
    enter_device: EnterDevice,
    stall_timeout: Duration,
    /// Error that caused the abort.
    failed: Option<Error>,
}

impl NcclCommunicator {
    /// Connects this rank to all other ranks. `rank` contains the rank and the world size. The timeouts are those of the
    /// connection and of later calls.
    pub fn connect(
        library: &Arc<NcclLibrary>,
        rank: (usize, usize),
        id: UniqueId,
        enter_device: EnterDevice,
        [connect_timeout, stall_timeout]: [Duration; 2],
    ) -> Result<Self> {
        let handle = library.start_init(rank, id)?;
        let mut connected = Self { library: library.clone(), handle, enter_device, stall_timeout, failed: None };
        match connected.poll_until_complete("ncclCommInitRankConfig", connect_timeout) {
            Ok(()) => Ok(connected),
            Err(error) => Err(connected.fail(error)),
        }
    }

    /// Polls until the pending NCCL call has completed.
    fn poll_until_complete(&self, operation: &'static str, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        while !self.library.is_complete(operation, self.handle)? {
            let waited = begin.elapsed();
            if waited >= timeout {
                return Err(Error::Deadline { operation, missing: Vec::new(), detail: String::new() });
            }
            pause(waited);
        }
        Ok(())
    }

    /// Checks for an asynchronous error. After an abort, returns the error that caused the abort.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.library.is_complete("NCCL all-reduce", self.handle).map(drop),
        }
    }

    /// Enqueues an in-place all-reduce on `stream`. Returns when NCCL has enqueued it.
    ///
    /// # Safety
    /// As for [`NcclLibrary::all_reduce`].
    pub unsafe fn all_reduce(
        &self,
        address: u64,
        elements: (usize, DataType),
        stream: *mut std::ffi::c_void,
    ) -> Result<()> {
        self.check()?;
        // SAFETY: promised by the caller; the communicator is alive, otherwise `check` fails.
        unsafe { self.library.all_reduce(self.handle, address, elements, stream)? };
        self.poll_until_complete("ncclAllReduce", self.stall_timeout)
    }

    /// Returns the error that caused the abort, if any.
    pub fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }

    /// Aborts the communicator because of `error`, unless it was aborted before. Returns the first error.
    pub fn fail(&mut self, error: Error) -> Error {
        if self.failed.is_none() {
            events::aborted("nccl", &error);
            self.failed = Some(error.clone());
            self.abort();
        }
        self.failed.clone().unwrap_or(error)
    }

    /// Calls `ncclCommAbort` on a separate thread, because the call can hang. Waits for it for a limited time. In a thread without a
    /// current device, the call would create a context on GPU 0.
    fn abort(&self) {
        let (library, handle, enter_device) = (self.library.clone(), self.handle, self.enter_device.clone());
        let (done, aborted) = channel();
        let body = move || {
            // A lost device cannot be entered. Its communicator must be aborted all the same.
            let _ = enter_device();
            drop(done.send(library.abort(handle)));
        };
        if std::thread::Builder::new().name("nccl-abort".into()).spawn(body).is_ok() {
            let _ = aborted.recv_timeout(ABORT_TIMEOUT.min(self.stall_timeout));
        }
    }
}

/// Finalizes and destroys the communicator, or aborts it if finalizing fails.
impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let finalize = || {
            self.library.finalize(self.handle)?;
            self.poll_until_complete("ncclCommFinalize", self.stall_timeout)
        };
        match finalize() {
            Ok(()) => drop(self.library.destroy(self.handle)),
            Err(_) => self.abort(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_are_polled_without_sleeping() {
        assert_eq!(sleep_after(Duration::from_micros(100)), None);
        assert_eq!(sleep_after(Duration::from_millis(1)), Some(POLL));
    }
}
