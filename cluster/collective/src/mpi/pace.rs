//! How the communication thread waits: MPI makes progress only while it is called, and a machine has as many compute threads
//! as cores.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// The first sleep between two polls, and the longest one while something is under way. Polls that only yield in between were
/// measured beside compute threads, and cost them more than they brought (docs/experiments/collectives.md).
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// The sleep after the next poll without success.
pub struct Pace {
    sleep: Duration,
    /// The longest sleep while nothing is under way: others may ask where this rank is, and what MPI has taken from it may not
    /// have left yet.
    idle: Duration,
}

impl Pace {
    pub fn new(idle: Duration) -> Self {
        Self { sleep: SHORTEST, idle }
    }

    /// Something has happened.
    pub fn moved(&mut self) {
        self.sleep = SHORTEST;
    }

    /// Waits after a poll without success, for the next request at most; `Err` when there can be no more.
    pub fn wait<T>(&mut self, requests: &Receiver<T>, is_idle: bool) -> Result<Option<T>, ()> {
        let sleep = self.sleep.min(if is_idle { self.idle } else { LONGEST });
        self.sleep = sleep * 2;
        match requests.recv_timeout(sleep) {
            Ok(request) => Ok(Some(request)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}
