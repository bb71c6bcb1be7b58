//! Lease of this coordinator, and when the store last confirmed it.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lambert_store::{Error, Lease, Result};

/// Random ID by which this coordinator recognizes its own leases.
pub static TAKER: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())));

/// Time for which a confirmed lease counts as held. The request poller checks the lease every two seconds, so the
/// confirmation is older only if the store is slow or the process was suspended.
const FRESH: Duration = Duration::from_secs(3);
/// Maximum number of checks before a write. A check that takes longer than `FRESH` is repeated, because the process may
/// have been suspended after the answer of the store.
const CHECKS: u32 = 3;

/// Last lease that this coordinator took, if any.
#[derive(Debug, Clone, Default)]
pub struct OwnLease(Arc<Mutex<HeldLease>>);

#[derive(Debug, Default)]
struct HeldLease {
    lease: Option<Lease>,
    /// Start of the last check that succeeded.
    confirmed: Option<Moment>,
}

/// A time on two clocks. The monotonic clock stands still while the host sleeps. The system clock may be set.
#[derive(Debug, Clone, Copy)]
struct Moment {
    monotonic: Instant,
    system: SystemTime,
}

impl Moment {
    fn now() -> Self {
        Self { monotonic: Instant::now(), system: SystemTime::now() }
    }

    fn is_fresh(&self) -> bool {
        self.monotonic.elapsed() < FRESH && self.system.elapsed().is_ok_and(|passed| passed < FRESH)
    }
}

impl OwnLease {
    fn lock(&self) -> MutexGuard<'_, HeldLease> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the lease.
    pub fn set(&self, lease: Lease) {
        *self.lock() = HeldLease { lease: Some(lease), confirmed: None };
    }

    /// Returns the lease.
    pub fn get(&self) -> Option<Lease> {
        self.lock().lease.clone()
    }

    /// Asks the store whether `lease`, the lease of this coordinator, is still held. A newer lease of this coordinator,
    /// whose confirmation is still in flight, is no loss.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::LeaseGone`], or another store error.
    pub fn check(&self, lease: &Lease) -> Result<()> {
        let begun = Moment::now();
        match lease.check() {
            Err(Error::LeaseLost { newest, .. }) if lease.successor(newest)?.is_of(&TAKER) => {}
            checked => checked?,
        }
        let mut held = self.lock();
        if held.lease.as_ref().is_some_and(|own| own.attempt() == lease.attempt()) {
            held.confirmed = Some(begun);
        }
        Ok(())
    }

    /// Checks that no other coordinator has taken over the run. Asks the store unless it has confirmed the lease within
    /// the last few seconds. Before this coordinator has taken a lease, the check succeeds.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::LeaseGone`], or another store error.
    pub fn confirm(&self) -> Result<()> {
        for _ in 0..CHECKS {
            let Some(lease) = self.unconfirmed() else { return Ok(()) };
            self.check(&lease)?;
        }
        Ok(())
    }

    /// Returns the lease if the last confirmation is too old.
    fn unconfirmed(&self) -> Option<Lease> {
        let held = self.lock();
        let is_fresh = held.confirmed.is_some_and(|confirmed| confirmed.is_fresh());
        held.lease.clone().filter(|_| !is_fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_store::Store;

    fn held(name: &str) -> (Store, OwnLease) {
        let store = Store::open(&format!("memory://own-lease/{name}")).unwrap();
        let own = OwnLease::default();
        assert!(own.confirm().is_ok(), "no lease was taken yet");
        own.set(Lease::take(&store).unwrap());
        own.confirm().unwrap();
        (store, own)
    }

    /// Suspends the process for `passed`, by one of the clocks.
    fn suspend(own: &OwnLease, age: impl FnOnce(&mut Moment)) {
        age(own.lock().confirmed.as_mut().unwrap());
    }

    #[test]
    fn a_lost_lease_is_noticed_after_a_suspension() {
        let (store, own) = held("lost");
        Lease::take(&store).unwrap();
        assert!(own.confirm().is_ok(), "a confirmation counts for {FRESH:?}");
        suspend(&own, |confirmed| confirmed.system -= FRESH);
        assert!(own.confirm().unwrap_err().is_lease_lost());
        suspend(&own, |confirmed| *confirmed = Moment::now());
        suspend(&own, |confirmed| confirmed.monotonic -= FRESH);
        assert!(own.confirm().unwrap_err().is_lease_lost());
    }

    #[test]
    fn a_held_lease_is_confirmed_after_a_suspension() {
        let (_store, own) = held("held");
        suspend(&own, |confirmed| confirmed.monotonic -= FRESH);
        assert!(own.unconfirmed().is_some());
        own.confirm().unwrap();
        assert!(own.unconfirmed().is_none());
    }

    #[test]
    fn a_newer_lease_of_this_coordinator_is_no_loss() {
        let (store, own) = held("own");
        Lease::take_exactly(&store, 2, &TAKER).unwrap().unwrap();
        suspend(&own, |confirmed| confirmed.monotonic -= FRESH);
        own.confirm().unwrap();
        Lease::take_exactly(&store, 3, "another").unwrap().unwrap();
        suspend(&own, |confirmed| confirmed.monotonic -= FRESH);
        assert!(own.confirm().unwrap_err().is_lease_lost());
    }
}
