//! Polling with backoff. MPI makes progress only when it is called, so the communication thread polls. Its polling
//! competes with the compute threads, which use all cores of the host.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// First sleep between two polls. In measurements, yielding instead of sleeping hid less of an all-reduce behind
/// computation (docs/experiments/collectives.md, Collectives).
const MIN_SLEEP: Duration = Duration::from_micros(50);
/// Longest sleep while an operation is in flight.
const MAX_SLEEP: Duration = Duration::from_millis(1);
/// Longest sleep at the beginning of an operation of the group. Its messages are short, and the rank waits for them
/// after each step.
const MAX_GROUP_SLEEP: Duration = Duration::from_micros(100);
/// Time without progress after which an operation of the group has the same longest sleep as others.
const GROUP_PATIENCE: Duration = Duration::from_millis(20);

/// Operations in flight on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// None.
    Nothing,
    /// An operation of the group, and perhaps buckets.
    Group,
    /// Buckets only.
    Buckets,
}

/// Exponential backoff between unsuccessful polls.
pub struct PollBackoff {
    sleep: Duration,
    /// Time of the last progress.
    last_progress: Instant,
    /// Longest sleep while no operation is in flight. It is limited, because other ranks may send probes and MPI may
    /// still have unsent messages.
    max_idle_sleep: Duration,
}

impl PollBackoff {
    pub fn new(max_idle_sleep: Duration) -> Self {
        Self { sleep: MIN_SLEEP, last_progress: Instant::now(), max_idle_sleep }
    }

    /// Resets the sleep to its minimum. Call this after progress.
    pub fn reset(&mut self) {
        (self.sleep, self.last_progress) = (MIN_SLEEP, Instant::now());
    }

    /// Sleeps after an unsuccessful poll, at most until the next request arrives. Returns that request, if any. Returns
    /// `Err` if all senders were dropped.
    pub fn wait<T>(&mut self, requests: &Receiver<T>, in_flight: InFlight) -> Result<Option<T>, ()> {
        let longest = match in_flight {
            InFlight::Nothing => self.max_idle_sleep,
            InFlight::Group if self.last_progress.elapsed() < GROUP_PATIENCE => MAX_GROUP_SLEEP,
            InFlight::Group | InFlight::Buckets => MAX_SLEEP,
        };
        let sleep = self.sleep.min(longest);
        self.sleep = sleep * 2;
        match requests.recv_timeout(sleep) {
            Ok(request) => Ok(Some(request)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}
