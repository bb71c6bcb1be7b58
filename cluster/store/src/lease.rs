//! Who holds a run: one object per attempt, created and never overwritten.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::retry::Patience;
use crate::run::{self, LAST_ATTEMPT};
use crate::store::Store;

/// The right to write to a run, until somebody takes a newer one.
///
/// There is nothing to renew and no clock involved: whoever starts the run next takes the next number, and the
/// attempt before has lost it from then on.
#[derive(Debug, Clone)]
pub struct Lease {
    store: Store,
    attempt: u32,
    /// What its object holds, by which it is told from another of the same name.
    object: Bytes,
}

/// No lease is longer than this, bytes.
const LONGEST: u64 = 64 << 10;

impl Lease {
    /// Takes the run for a new attempt: creates `lease-000001`, or one more than the newest there is. Checkpoints count,
    /// too: one that was copied here from another run must not come after those of the attempts to follow.
    ///
    /// A store that replaces objects which were to be created only would give two coordinators the same lease. So this
    /// proves that the store does not: a second creation must be refused, and the object must still carry the mark of the
    /// first.
    ///
    /// # Errors
    /// [`Error::NotCreateOnly`] where the store cannot hold a lease, [`Error::LastAttempt`] where no number is left; else what
    /// the store says.
    pub fn take(store: &Store) -> Result<Self> {
        let of_lease = Self::newest(store)?.map(|attempt| (attempt, run::lease(attempt)));
        let mut newest = of_lease.max(highest_attempt(store)?);
        let lease = loop {
            let attempt = after(store, newest)?;
            match Self::create(store, attempt, "")? {
                Some(taken) => break taken,
                None => newest = Some((attempt, run::lease(attempt))),
            }
        };
        let name = run::lease(lease.attempt);
        if store.put_new(&name, holder(lease.attempt, ""))? || store.get_at_most(&name, LONGEST)? != lease.object {
            return Err(Error::NotCreateOnly { url: store.url_of(&name) });
        }
        Ok(lease)
    }

    /// Takes the run for exactly this attempt, the one after the taker's own; `None` if somebody else has it. A creation may fail
    /// when the object is there already: one that bears the name of the same `taker` is its own.
    ///
    /// # Errors
    /// [`Error::LastAttempt`] where that is no number of an attempt; else what the store says.
    pub fn take_exactly(store: &Store, attempt: u32, taker: &str) -> Result<Option<Self>> {
        let before = attempt.saturating_sub(1);
        let attempt = after(store, Some((before, run::lease(before))))?;
        if let Some(lease) = Self::create(store, attempt, taker)? {
            return Ok(Some(lease));
        }
        let object = store.get_at_most(&run::lease(attempt), LONGEST)?;
        let there: serde_json::Value = serde_json::from_slice(&object).unwrap_or_default();
        let is_own = there["taker"].as_str() == Some(taker);
        Ok(is_own.then(|| Self { store: store.clone(), attempt, object }))
    }

    /// The lease, unless there is one of that attempt.
    fn create(store: &Store, attempt: u32, taker: &str) -> Result<Option<Self>> {
        let object = holder(attempt, taker);
        let created = store.put_new(&run::lease(attempt), object.clone())?;
        Ok(created.then(|| Self { store: store.clone(), attempt, object }))
    }

    /// The lease that another process (the coordinator) has taken as `attempt`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such lease; else what the store says.
    pub fn attach(store: &Store, attempt: u32) -> Result<Self> {
        let object = store.get_at_most(&run::lease(attempt), LONGEST)?;
        Ok(Self { store: store.clone(), attempt, object })
    }

    /// The same lease, asked for with another patience.
    #[must_use]
    pub fn with_patience(&self, patience: Patience) -> Self {
        Self { store: self.store.with_patience(patience), ..self.clone() }
    }

    /// The newest attempt that took the run, if any did.
    ///
    /// # Errors
    /// What the store says.
    pub fn newest(store: &Store) -> Result<Option<u32>> {
        let names = store.list_names("")?;
        Ok(names.iter().filter_map(|name| run::attempt_of_lease(name)).max())
    }

    /// This attempt's number, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether this lease is there and none is newer.
    ///
    /// # Errors
    /// What the store says; then nothing is known.
    pub fn still_held(&self) -> Result<bool> {
        match self.check() {
            Ok(()) => Ok(true),
            Err(error) if error.is_lease_lost() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Like [`Lease::still_held`], with the loss as an error that says what has become of the run.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] names the new holder, [`Error::LeaseGone`] says that the run was moved or removed; else what the
    /// store says.
    pub fn check(&self) -> Result<()> {
        let (url, attempt) = (self.store.url().to_string(), self.attempt);
        if let Some(newest) = Self::newest(&self.store)?.filter(|newest| *newest > attempt) {
            return Err(Error::LeaseLost { url, attempt, newest });
        }
        // Read by its name: a shared file system may show an old listing of a folder for a while.
        match self.store.get_at_most(&run::lease(attempt), LONGEST) {
            Ok(object) if object == self.object => Ok(()),
            Ok(_) => Err(Error::LeaseGone { url, attempt }),
            Err(error) if error.is_not_found() => Err(Error::LeaseGone { url, attempt }),
            Err(error) => Err(error),
        }
    }
}

/// The number of the attempt after the newest, which an object names; the first is 1.
fn after(store: &Store, newest: Option<(u32, String)>) -> Result<u32> {
    let Some((attempt, object)) = newest else { return Ok(1) };
    let next = attempt.checked_add(1).filter(|next| *next <= LAST_ATTEMPT);
    next.ok_or_else(|| Error::LastAttempt { url: store.url_of(&object), attempt })
}

/// Who took it, for people; and a random mark, by which a writer whose answer was lost knows its own object.
fn holder(attempt: u32, taker: &str) -> Bytes {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // Each RandomState has keys of its own.
    let mark = format!("{:016x}", RandomState::new().hash_one((seconds, std::process::id())));
    let holder = serde_json::json!({
        "attempt": attempt,
        "host": crate::host::name(),
        "process": std::process::id(),
        "unix_seconds": seconds,
        "taker": taker,
        "mark": mark,
    });
    Bytes::from(format!("{holder}\n"))
}

/// The highest attempt that the folder of a checkpoint names, finished or not, and the folder's name.
fn highest_attempt(store: &Store) -> Result<Option<(u32, String)>> {
    let folders = store.list_folders(run::CHECKPOINTS)?;
    let attempts = folders.iter().filter_map(|name| Some((run::Place::of(name)?.attempt, run::checkpoint(name))));
    Ok(attempts.max())
}
