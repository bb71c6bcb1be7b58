//! Lock of `lambert submit`: the object with the highest number in `control/submissions` of the run's store. `lambert
//! submit` takes the lock before it checks for an existing job, and releases the lock once job.json names the new job.
//! Two concurrent submissions therefore cannot queue two jobs.
//!
//! A lock is taken by creating the next number, if the last holder has released its lock or is dead. Only one process
//! can create an object. Objects are never deleted, so no process can delete the lock of another, and a number is never
//! used again. A holder writes only to its own object.

use lambert_store::Store;
use lambert_store::run::{self, SUBMISSIONS};
use serde::{Deserialize, Serialize};

use crate::failure::chain;
use crate::host::{self, now};

/// Age, in seconds, after which a holder on another host or in another container is presumed dead. A submission takes only seconds.
const ABANDONED: f64 = 600.0;

/// Process that holds the lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LockHolder {
    host: String,
    pid: u32,
    /// Boot ID and process start time, which reveal that a process ID was reused.
    since: String,
    /// PID namespace of the process ID. Empty if unknown.
    #[serde(default)]
    pid_namespace: String,
    /// Time of locking, seconds since the Unix epoch.
    unix: f64,
}

impl LockHolder {
    fn of_process() -> Self {
        let pid = std::process::id();
        let (since, pid_namespace) = (host::since(pid).unwrap_or_default(), host::pid_namespace());
        Self { host: host::name(), pid, since, pid_namespace, unix: now() }
    }

    fn is_gone(&self, now: f64) -> bool {
        if self.host == host::name() && host::has_processes_of(&self.pid_namespace) {
            return host::since(self.pid).is_none_or(|since| since != self.since) || !host::lives(self.pid);
        }
        (now - self.unix).abs() > ABANDONED
    }
}

/// Content of a lock object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LockContent {
    #[serde(flatten)]
    holder: LockHolder,
    #[serde(rename = "released")]
    is_released: bool,
}

impl LockContent {
    fn json(&self) -> String {
        serde_json::json!(self).to_string()
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
    number: u32,
    content: LockContent,
}

impl<'a> SubmissionLock<'a> {
    /// Takes the lock. If the holder is dead, takes over its lock.
    pub fn take(store: &'a Store) -> Result<Self, SubmissionLockError> {
        let numbers = store.list_names(SUBMISSIONS)?.into_iter().filter_map(|name| name.parse().ok());
        let newest = numbers.max().unwrap_or(0);
        if newest > 0 {
            refuse_held(store, newest)?;
        }
        Self::take_after(store, newest)
    }

    /// Creates the lock after lock `last`, which is free. If another process is faster, its lock is held.
    fn take_after(store: &'a Store, last: u32) -> Result<Self, SubmissionLockError> {
        let content = LockContent { holder: LockHolder::of_process(), is_released: false };
        let mut number = last + 1;
        loop {
            if store.put_new(&run::submission(number), content.json().into())? {
                return Ok(Self { store, number, content });
            }
            refuse_held(store, number)?;
            number += 1;
        }
    }
}

/// Rejects lock `number` if its holder is alive and has not released it.
fn refuse_held(store: &Store, number: u32) -> Result<(), SubmissionLockError> {
    let bytes = store.get_at_most(&run::submission(number), 1 << 16)?;
    let content = serde_json::from_slice::<LockContent>(&bytes).ok();
    match content.filter(|content| !content.is_released && !content.holder.is_gone(now())) {
        Some(LockContent { holder: LockHolder { host, pid, .. }, .. }) => {
            Err(SubmissionLockError::Held { url: store.url().to_owned(), host, pid })
        }
        None => Ok(()),
    }
}

impl Drop for SubmissionLock<'_> {
    fn drop(&mut self) {
        self.content.is_released = true;
        let object = run::submission(self.number);
        if let Err(error) = self.store.put(&object, self.content.json().into()) {
            tracing::warn!("cannot release {}/{object}: {}", self.store.url(), chain(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &Store, number: u32, holder: LockHolder) {
        store.put(&run::submission(number), LockContent { holder, is_released: false }.json().into()).unwrap();
    }

    #[test]
    fn only_one_submission_holds_the_lock() {
        let store = Store::open("memory://claim/run").unwrap();
        let first = SubmissionLock::take(&store).unwrap();
        let refused = SubmissionLock::take(&store).unwrap_err().to_string();
        assert!(refused.contains(&format!("(pid {}, host ", std::process::id())), "{refused}");
        drop(first);
        drop(SubmissionLock::take(&store).unwrap());
        assert_eq!(SubmissionLock::take(&store).unwrap().number, 3);
    }

    #[test]
    fn the_lock_of_a_dead_process_is_taken_over() {
        let store = Store::open("memory://claim-dead/run").unwrap();
        let own = LockHolder::of_process();
        let dead = LockHolder { since: "long ago".into(), ..own.clone() };
        let elsewhere = LockHolder { host: "another".into(), ..own.clone() };
        let old = LockHolder { unix: own.unix - 2.0 * ABANDONED, ..elsewhere.clone() };
        let contained = LockHolder { pid_namespace: "pid:[1]".into(), ..dead.clone() };
        for (number, (holder, is_taken)) in
            (1..).zip([(dead, true), (own, false), (old, true), (elsewhere, false), (contained, false)])
        {
            put(&store, 2 * number, holder.clone());
            assert_eq!(SubmissionLock::take(&store).is_ok(), is_taken, "{holder:?}");
        }
    }

    /// Two submitters find the lock of a dead process. The slower one must not take over the lock of the faster one.
    #[test]
    fn only_one_of_two_submitters_takes_over_a_lock() {
        let store = Store::open("memory://claim-two/run").unwrap();
        let own = LockHolder::of_process();
        put(&store, 1, LockHolder { since: "long ago".into(), ..own });
        let first = SubmissionLock::take(&store).unwrap();
        assert!(matches!(SubmissionLock::take_after(&store, 1), Err(SubmissionLockError::Held { .. })));
        assert!(matches!(SubmissionLock::take(&store), Err(SubmissionLockError::Held { .. })));
        drop(first);
        assert_eq!(SubmissionLock::take_after(&store, 1).unwrap().number, 3, "the first one has released its lock");
    }

    /// A submission took so long that another host has taken over its lock.
    #[test]
    fn a_late_holder_keeps_the_lock_of_its_successor() {
        let store = Store::open("memory://claim-late/run").unwrap();
        let late = SubmissionLock::take(&store).unwrap();
        let successor = SubmissionLock::take_after(&store, late.number + 1).unwrap();
        drop(late);
        assert!(matches!(SubmissionLock::take(&store), Err(SubmissionLockError::Held { .. })));
        drop(successor);
        assert!(SubmissionLock::take(&store).is_ok());
    }
}
