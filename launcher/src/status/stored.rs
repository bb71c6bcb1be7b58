//! The status that a run's coordinator wrote last, and whether that coordinator still works.

use lambert_store::Store;

use super::{OBJECT, Status};
use crate::failure::Failure;
use crate::host;

/// No status is longer than this, bytes.
pub const LONGEST: u64 = 16 << 20;

/// A coordinator writes every few seconds; one that has not for this long is likely gone.
const OLD: f64 = 60.0;
#[derive(Debug, thiserror::Error)]
#[error("{url}/{OBJECT} is not a status: {message}")]
struct Unreadable {
    url: String,
    message: String,
}

/// Whether somebody works on a run, as far as one can tell from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its coordinator lives on this host, or wrote a moment ago.
    Alive,
    /// Its coordinator was on this host and is no more.
    Gone,
    /// Its coordinator is on another host and has not written for a while.
    Unknown,
    /// There is nobody, and need not be: the run is over.
    Over,
}

/// What the run's last coordinator wrote, as far as it can be read: a coordinator begins without it, too.
pub fn before(store: &Store) -> Status {
    let bytes = store.get_at_most(OBJECT, LONGEST).ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// The status in the run's store, if there is one.
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

/// Whether the writer of `status` still works on the run.
pub fn life(status: &Status) -> Life {
    let coordinator = &status.coordinator;
    if status.state.is_over() {
        Life::Over
    } else if coordinator.host == host::name() {
        let there = host::since(coordinator.pid).filter(|_| host::lives(coordinator.pid));
        let is_it = |since: String| coordinator.since.is_empty() || since == coordinator.since;
        if there.is_some_and(is_it) { Life::Alive } else { Life::Gone }
    } else if host::now() - status.updated < OLD {
        Life::Alive
    } else {
        Life::Unknown
    }
}
