//! Last status written by a run's coordinator, and its liveness.

use lambert_store::Store;

use super::{OBJECT, Status};
use crate::failure::Failure;
use crate::host;

/// Maximum size of a status, bytes.
pub const LONGEST: u64 = 16 << 20;

/// Seconds without an update after which a coordinator on another host may be dead.
const OLD: f64 = 60.0;
#[derive(Debug, thiserror::Error)]
#[error("{url}/{OBJECT} is not a run status: {message}")]
struct Unreadable {
    url: String,
    message: String,
}

/// Liveness of a run's coordinator, judged from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Runs on this host, or updated the status recently.
    Alive,
    /// Ran on this host and has exited.
    Gone,
    /// Runs on another host and has not updated the status recently.
    Unknown,
    /// The run is over; no coordinator is needed.
    Over,
}

impl Liveness {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
            Self::Over => "over",
        }
    }
}

/// Reads the previous coordinator's status; the default if absent or unreadable.
pub fn before(store: &Store) -> Status {
    let bytes = store.get_at_most(OBJECT, LONGEST).ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Reads the status from the run's store, if present.
pub fn read(store: &Store) -> Result<Option<Status>, Failure> {
    match store.get_at_most(OBJECT, LONGEST) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let (url, message) = (store.url().to_owned(), error.to_string());
            Failure::failed(Unreadable { url, message })
        }),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Returns the liveness of the coordinator that wrote `status`.
pub fn liveness(status: &Status) -> Liveness {
    let coordinator = &status.coordinator;
    if status.state.is_over() {
        Liveness::Over
    } else if coordinator.host == host::name() {
        let there = host::since(coordinator.pid).filter(|_| host::lives(coordinator.pid));
        let is_it = |since: String| coordinator.since.is_empty() || since == coordinator.since;
        if there.is_some_and(is_it) { Liveness::Alive } else { Liveness::Gone }
    } else if host::now() - status.updated < OLD {
        Liveness::Alive
    } else {
        Liveness::Unknown
    }
}
