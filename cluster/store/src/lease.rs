//! Leases of a run. Each attempt has one lease object, which is created once and never overwritten.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::retry::RetryPolicy;
use crate::run::{self, LAST_ATTEMPT};
use crate::store::Store;

/// The right to write to a run, until a newer lease is taken.
///
/// A lease does not expire and needs no renewal. The next coordinator creates a lease with the next attempt number,
/// which ends the previous lease.
#[derive(Debug, Clone)]
pub struct Lease {
    store: Store,
    attempt: u32,
    /// Content of the lease object. It distinguishes this lease from a later object of the same name.
    object: Bytes,
}

/// Size limit of a lease, bytes.
const MAX_LEASE_BYTES: u64 = 64 << 10;

impl Lease {
    /// Acquires the lease of a new attempt. Its attempt number is one more than the highest attempt number of all
    /// leases and checkpoints, or 1 if there are none. Checkpoints count, because they may have been copied from
    /// another run, and the checkpoints of the new attempt must sort after the copied ones.
    ///
    /// A store that ignores create-only conditions would give two coordinators the same lease. Therefore this function
    /// tries to create the object a second time. It verifies that the second creation fails and that the object keeps
    /// its first content.
    ///
    /// # Errors
    /// [`Error::NotCreateOnly`] if the store ignores create-only conditions, [`Error::LastAttempt`] if no attempt
    /// number is left, or another store error.
    pub fn take(store: &Store) -> Result<Self> {
        let of_lease = Self::newest(store)?.map(|attempt| (attempt, run::lease(attempt)));
        let mut newest = of_lease.max(highest_checkpoint_attempt(store)?);
        let lease = loop {
            let attempt = next_attempt(store, newest)?;
            match Self::create(store, attempt, "")? {
                Some(taken) => break taken,
                None => newest = Some((attempt, run::lease(attempt))),
            }
        };
        let name = run::lease(lease.attempt);
        if store.put_new(&name, lease_content(lease.attempt, ""))?
            || store.get_at_most(&name, MAX_LEASE_BYTES)? != lease.object
        {
            return Err(Error::NotCreateOnly { url: store.url_of(&name) });
        }
        Ok(lease)
    }

    /// Acquires the lease of exactly this attempt, which follows the attempt of the caller. Returns `None` if another
    /// coordinator holds that lease. A creation that failed for the caller may have succeeded at the store. Therefore
    /// an existing lease object that names the same `taker` counts as acquired by the caller.
    ///
    /// # Errors
    /// [`Error::LastAttempt`] if `attempt` is out of range, or another store error.
    pub fn take_exactly(store: &Store, attempt: u32, taker: &str) -> Result<Option<Self>> {
        let before = attempt.saturating_sub(1);
        let attempt = next_attempt(store, Some((before, run::lease(before))))?;
        if let Some(lease) = Self::create(store, attempt, taker)? {
            return Ok(Some(lease));
        }
        let there = Self::attach(store, attempt)?;
        Ok(there.is_of(taker).then_some(there))
    }

    /// Creates the lease of an attempt. Returns `None` if the lease already exists.
    fn create(store: &Store, attempt: u32, taker: &str) -> Result<Option<Self>> {
        let object = lease_content(attempt, taker);
        let created = store.put_new(&run::lease(attempt), object.clone())?;
        Ok(created.then(|| Self { store: store.clone(), attempt, object }))
    }

    /// Opens the lease of `attempt`, which another process (the coordinator) acquired.
    ///
    /// # Errors
    /// [`Error::NotFound`], or another store error.
    pub fn attach(store: &Store, attempt: u32) -> Result<Self> {
        let object = store.get_at_most(&run::lease(attempt), MAX_LEASE_BYTES)?;
        Ok(Self { store: store.clone(), attempt, object })
    }

    /// Opens a newer lease of the same run, of attempt `attempt`.
    ///
    /// # Errors
    /// [`Error::NotFound`], or another store error.
    pub fn successor(&self, attempt: u32) -> Result<Self> {
        Self::attach(&self.store, attempt)
    }

    /// Returns true if the lease names `taker`, who acquired it with [`Lease::take_exactly`].
    pub fn is_of(&self, taker: &str) -> bool {
        let content: serde_json::Value = serde_json::from_slice(&self.object).unwrap_or_default();
        content["taker"].as_str() == Some(taker)
    }

    /// Returns the same lease with another retry policy.
    #[must_use]
    pub fn with_retry_policy(&self, retry_policy: RetryPolicy) -> Self {
        Self { store: self.store.with_retry_policy(retry_policy), ..self.clone() }
    }

    /// Returns the newest attempt with a lease, or `None` if there is no lease.
    ///
    /// # Errors
    /// A store error.
    pub fn newest(store: &Store) -> Result<Option<u32>> {
        let names = store.list_names("")?;
        Ok(names.iter().filter_map(|name| run::attempt_of_lease(name)).max())
    }

    /// Attempt number, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns true if this lease exists and is the newest.
    ///
    /// # Errors
    /// A store error. It is then unknown whether the lease is still held.
    pub fn still_held(&self) -> Result<bool> {
        match self.check() {
            Ok(()) => Ok(true),
            Err(error) if error.is_lease_lost() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks that this lease exists and is the newest. The error for a lost lease says what happened to the run.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with the newer attempt, [`Error::LeaseGone`] if the run was moved or removed, or another
    /// store error.
    pub fn check(&self) -> Result<()> {
        let (url, attempt) = (self.store.url().to_string(), self.attempt);
        if let Some(newest) = Self::newest(&self.store)?.filter(|newest| *newest > attempt) {
            return Err(Error::LeaseLost { url, attempt, newest });
        }
        // The object is read by name, because a directory listing on a shared file system can be stale.
        match self.store.get_at_most(&run::lease(attempt), MAX_LEASE_BYTES) {
            Ok(object) if object == self.object => Ok(()),
            Ok(_) => Err(Error::LeaseGone { url, attempt }),
            Err(error) if error.is_not_found() => Err(Error::LeaseGone { url, attempt }),
            Err(error) => Err(error),
        }
    }
}

/// Returns the attempt number after `newest`, or 1 for `None`. The string in `newest` is the name of the object with
/// that attempt number, for the error message.
fn next_attempt(store: &Store, newest: Option<(u32, String)>) -> Result<u32> {
    let Some((attempt, object)) = newest else { return Ok(1) };
    let next = attempt.checked_add(1).filter(|next| *next <= LAST_ATTEMPT);
    next.ok_or_else(|| Error::LastAttempt { url: store.url_of(&object), attempt })
}

/// Content of a lease: the holder, for diagnostics, and a random token that identifies the writer.
fn lease_content(attempt: u32, taker: &str) -> Bytes {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // Each RandomState has new random keys.
    let token = format!("{:016x}", RandomState::new().hash_one((seconds, std::process::id())));
    let holder = serde_json::json!({
        "attempt": attempt,
        "host": crate::host::name(),
        "process": std::process::id(),
        "unix_seconds": seconds,
        "taker": taker,
        "mark": token,
    });
    Bytes::from(format!("{holder}\n"))
}

/// Returns the highest attempt number among all checkpoints, committed or not, and the prefix of that checkpoint.
fn highest_checkpoint_attempt(store: &Store) -> Result<Option<(u32, String)>> {
    let folders = store.list_folders(run::CHECKPOINTS)?;
    let attempts =
        folders.iter().filter_map(|name| Some((run::AttemptStep::parse(name)?.attempt, run::checkpoint(name))));
    Ok(attempts.max())
}
