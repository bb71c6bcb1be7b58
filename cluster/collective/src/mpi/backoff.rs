//! Polling with backoff. MPI makes progress only when it is called, so the communication thread polls. Its polling
//! competes with the compute threads, which use all cores of the host.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// First sleep between two polls. In measurements, yielding instead of sleeping hid less of an all-reduce behind
/// computation (docs/experiments/collectives.md, Collectives).
const MIN_SLEEP: Duration = Duration::from_micros(50);
/// Longest sleep while an operation is in flight.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Exponential backoff between unsuccessful polls.
pub struct PollBackoff {
    sleep: Duration,
    /// Longest sleep while no operation is in flight. It is limited, because other ranks may send probes and MPI may
    /// still have unsent messages.
    max_idle_sleep: Duration,
}

impl PollBackoff {
    pub fn new(max_idle_sleep: Duration) -> Self {
        Self { sleep: MIN_SLEEP, max_idle_sleep }
    }

    /// Resets the sleep to its minimum. Call this after progress.
    pub fn reset(&mut self) {
        self.sleep = MIN_SLEEP;
    }

    /// Sleeps after an unsuccessful poll, at most until the next request arrives. Returns that request, if any. Returns
    /// `Err` if all senders were dropped.
    pub fn wait<T>(&mut self, requests: &Receiver<T>, is_idle: bool) -> Result<Option<T>, ()> {
        let sleep = self.sleep.min(if is_idle { self.max_idle_sleep } else { MAX_SLEEP });
        self.sleep = sleep * 2;
        match requests.recv_timeout(sleep) {
            Ok(request) => Ok(Some(request)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}
