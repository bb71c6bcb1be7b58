//! Who holds a run: one object per attempt, created and never overwritten.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::{checkpoint, run};

/// The right to write to a run, until somebody takes a newer one.
///
/// There is nothing to renew and no clock involved: whoever starts the run next takes the next number, and the
/// attempt before has lost it from then on.
#[derive(Debug, Clone)]
pub struct Lease {
    store: Store,
    attempt: u32,
}

impl Lease {
    /// Takes the run for a new attempt: creates `lease-000001`, or one more than the newest there is. Checkpoints count,
    /// too: one that was copied here from another run must not come after those of the attempts to follow.
    ///
    /// A store that replaces objects which were to be created only would give two coordinators the same lease. So this
    /// proves that the store does not: a second creation must be refused, and the object must still carry the mark of the
    /// first.
    ///
    /// # Errors
    /// [`Error::NotCreateOnly`] where the store cannot hold a lease; else what the store says.
    pub fn take(store: &Store) -> Result<Self> {
        let mut attempt = Self::newest(store)?.max(checkpoint::highest_attempt(store)?).unwrap_or(0) + 1;
        let (lease, own) = loop {
            match Self::create(store, attempt, "")? {
                Some(taken) => break taken,
                None => attempt += 1,
            }
        };
        let name = run::lease(attempt);
        if store.put_new(&name, holder(attempt, ""))? || store.get(&name)? != own {
            return Err(Error::NotCreateOnly { url: store.url_of(&name) });
        }
        Ok(lease)
    }

    /// Takes the run for exactly this attempt, the one after the taker's own; `None` if somebody else has it. A creation may fail
    /// when the object is there already: one that bears the name of the same `taker` is its own.
    ///
    /// # Errors
    /// What the store says.
    pub fn take_exactly(store: &Store, attempt: u32, taker: &str) -> Result<Option<Self>> {
        if let Some((lease, _)) = Self::create(store, attempt, taker)? {
            return Ok(Some(lease));
        }
        let there: serde_json::Value = serde_json::from_slice(&store.get(&run::lease(attempt))?).unwrap_or_default();
        let is_own = there["taker"].as_str() == Some(taker);
        Ok(is_own.then(|| Self { store: store.clone(), attempt }))
    }

    /// The lease, and what its object holds.
    fn create(store: &Store, attempt: u32, taker: &str) -> Result<Option<(Self, Bytes)>> {
        let own = holder(attempt, taker);
        let created = store.put_new(&run::lease(attempt), own.clone())?;
        Ok(created.then(|| (Self { store: store.clone(), attempt }, own)))
    }

    /// The lease that another process (the coordinator) has taken as `attempt`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such lease; else what the store says.
    pub fn attach(store: &Store, attempt: u32) -> Result<Self> {
        let name = run::lease(attempt);
        let there = store.head(&name)?.is_some();
        let missing = Error::NotFound { operation: "attach to", url: store.url_of(&name) };
        if there { Ok(Self { store: store.clone(), attempt }) } else { Err(missing) }
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

    /// Whether no newer lease exists.
    ///
    /// # Errors
    /// What the store says; then nothing is known.
    pub fn still_held(&self) -> Result<bool> {
        Ok(Self::newest(&self.store)? <= Some(self.attempt))
    }

    /// Like [`Lease::still_held`], with the loss as an error that names the new holder.
    ///
    /// # Errors
    /// [`Error::LeaseLost`]; else what the store says.
    pub fn check(&self) -> Result<()> {
        match Self::newest(&self.store)? {
            Some(newest) if newest > self.attempt => {
                Err(Error::LeaseLost { url: self.store.url().to_string(), attempt: self.attempt, newest })
            }
            _ => Ok(()),
        }
    }
}

/// Who took it, for people; and a random mark, by which a writer whose answer was lost knows its own object.
fn holder(attempt: u32, taker: &str) -> Bytes {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // Each RandomState has keys of its own.
    let mark = format!("{:016x}", RandomState::new().hash_one((seconds, std::process::id())));
    let holder = serde_json::json!({
        "attempt": attempt,
        "host": host.trim(),
        "process": std::process::id(),
        "unix_seconds": seconds,
        "taker": taker,
        "mark": mark,
    });
    Bytes::from(format!("{holder}\n"))
}
