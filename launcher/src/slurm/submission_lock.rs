//! Lock of `lambert submit`: object `control/submission` in the store of the run. `lambert submit` takes the lock
//! before it checks for an existing job, and releases the lock once job.json names the new job. Two concurrent
//! submissions therefore cannot queue two jobs.

use lambert_store::Store;
use lambert_store::run::SUBMISSION;
use serde::{Deserialize, Serialize};

use crate::failure::chain;
use crate::host::{self, now};

/// Age, in seconds, after which a holder on another host is presumed dead. A submission takes only seconds.
const ABANDONED: f64 = 600.0;

/// Process that holds the lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LockHolder {
    host: String,
    pid: u32,
    /// Boot ID and process start time, which reveal that a process ID was reused.
    since: String,
    /// Time of locking, seconds since the Unix epoch.
    unix: f64,
}

impl LockHolder {
    fn of_process() -> Self {
        let pid = std::process::id();
        Self { host: host::name(), pid, since: host::since(pid).unwrap_or_default(), unix: now() }
    }

    fn is_gone(&self, now: f64) -> bool {
        if self.host == host::name() {
            return host::since(self.pid).is_none_or(|since| since != self.since) || !host::lives(self.pid);
        }
        (now - self.unix).abs() > ABANDONED
    }
}

/// The lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionLockError {
    /// Another submission is in progress.
    #[error(
        "another `lambert submit` (pid {pid}, host {host}) is submitting {url}; see `lambert status {url}`, or retry in \
         {ABANDONED} s if it has died"
    )]
    Held {
        /// URL of the run.
        url: String,
        /// Host of the holder.
        host: String,
        /// Process ID of the holder.
        pid: u32,
    },
    /// Store error.
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
}

/// The submission lock of a run, released when dropped.
#[derive(Debug)]
pub struct SubmissionLock<'a> {
    store: &'a Store,
}

impl<'a> SubmissionLock<'a> {
    /// Takes the lock. If the holder is dead, takes over its lock.
    pub fn take(store: &'a Store) -> Result<Self, SubmissionLockError> {
        let own = serde_json::json!(LockHolder::of_process()).to_string();
        if store.put_new(SUBMISSION, own.clone().into())? {
            return Ok(Self { store });
        }
        let holder = match store.get_at_most(SUBMISSION, 1 << 16) {
            Ok(bytes) => serde_json::from_slice::<LockHolder>(&bytes).ok(),
            // The holder released the lock in the meantime.
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        if holder.as_ref().is_none_or(|holder| holder.is_gone(now())) {
            store.delete(SUBMISSION)?;
            if store.put_new(SUBMISSION, own.into())? {
                return Ok(Self { store });
            }
        }
        let (host, pid) = holder.map_or_else(|| ("unknown".to_owned(), 0), |holder| (holder.host, holder.pid));
        Err(SubmissionLockError::Held { url: store.url().to_owned(), host, pid })
    }
}

impl Drop for SubmissionLock<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.store.delete(SUBMISSION) {
            tracing::warn!("cannot delete {}/{SUBMISSION}: {}", self.store.url(), chain(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_submission_holds_the_lock() {
        let store = Store::open("memory://claim/run").unwrap();
        let first = SubmissionLock::take(&store).unwrap();
        let refused = SubmissionLock::take(&store).unwrap_err().to_string();
        assert!(refused.contains(&format!("(pid {}, host ", std::process::id())), "{refused}");
        drop(first);
        drop(SubmissionLock::take(&store).unwrap());
        assert_eq!(store.head(SUBMISSION).unwrap(), None);
    }

    #[test]
    fn the_lock_of_a_dead_process_is_released() {
        let store = Store::open("memory://claim-dead/run").unwrap();
        let own = LockHolder::of_process();
        let dead = LockHolder { since: "long ago".into(), ..own.clone() };
        let elsewhere = LockHolder { host: "another".into(), ..own.clone() };
        let old = LockHolder { unix: own.unix - 2.0 * ABANDONED, ..elsewhere.clone() };
        for (holder, is_taken) in [(own, false), (dead, true), (elsewhere, false), (old, true)] {
            store.put(SUBMISSION, serde_json::json!(holder).to_string().into()).unwrap();
            assert_eq!(SubmissionLock::take(&store).is_ok(), is_taken, "{holder:?}");
        }
    }
}
