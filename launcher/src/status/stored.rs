//! Last status that the coordinator of a run wrote, and the liveness of that coordinator.

use lambert_store::Store;

use super::{OBJECT, Status};
use crate::failure::Failure;
use crate::host;

/// Maximum size of a status, bytes.
pub const MAX_STATUS_BYTES: u64 = 16 << 20;

/// Seconds without an update after which a coordinator on another host may be dead. An update in the future is as old: the clock
/// of that host is wrong.
const OLD: f64 = 60.0;

/// A status that is not JSON, or not a status.
#[derive(Debug, thiserror::Error)]
#[error("{url}/{OBJECT} is not a run status: {message}")]
pub struct DamagedStatus {
    url: String,
    message: String,
}

/// Liveness of the coordinator of a run, as seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// The coordinator is running on this host, or it recently updated the status from another host or container.
    Alive,
    /// The coordinator ran on this host and has exited.
    Gone,
    /// The coordinator is on another host or in another container, and has not updated the status recently.
    Unknown,
    /// The run is over, so it needs no coordinator.
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

/// Reads the last status of the previous coordinator. Returns the default, with a warning, if the status is unreadable. No warning if
/// it is missing.
pub fn before(store: &Store) -> Status {
    let message = match read_if_intact(store) {
        Ok(Ok(status)) => return status.unwrap_or_default(),
        Ok(Err(damaged)) => damaged.to_string(),
        Err(failure) => failure.to_string(),
    };
    tracing::warn!("cannot read the status of the previous coordinator; starting a new one: {message}");
    Status::default()
}

/// Reads the status from the store of the run. Returns `None` if the store has no status.
pub fn read(store: &Store) -> Result<Option<Status>, Failure> {
    read_if_intact(store)?.map_err(Failure::failed)
}

/// Like [`read`]. A damaged status is an inner error, for commands that have other facts of the run to show.
pub fn read_if_intact(store: &Store) -> Result<Result<Option<Status>, DamagedStatus>, Failure> {
    match store.get_at_most(OBJECT, MAX_STATUS_BYTES) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let (url, message) = (store.url().to_owned(), error.to_string());
            DamagedStatus { url, message }
        })),
        Err(error) if error.is_not_found() => Ok(Ok(None)),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Returns the liveness of the coordinator that wrote `status`.
pub fn liveness(status: &Status) -> Liveness {
    let coordinator = &status.coordinator;
    if status.state.is_over() {
        Liveness::Over
    } else if coordinator.host == host::name() && host::has_processes_of(&coordinator.pid_namespace) {
        let there = host::since(coordinator.pid).filter(|_| host::lives(coordinator.pid));
        let is_it = |since: String| coordinator.since.is_empty() || since == coordinator.since;
        if there.is_some_and(is_it) { Liveness::Alive } else { Liveness::Gone }
    } else if (host::now() - status.updated).abs() < OLD {
        Liveness::Alive
    } else {
        Liveness::Unknown
    }
}
