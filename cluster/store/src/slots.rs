//! Limits of the number of requests that the process has in flight: one for large requests, one for small reads.
//!
//! All parts in flight share the bandwidth. On a slow link, too many of them exceed their time limits together, and the
//! bytes sent so far are lost. Therefore each timeout halves the number of slots and doubles the time limit of uploads.
//! A throttled request halves the number of slots, too. Requests that complete in a fraction of their limit add slots
//! again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Number of slots while no request times out or is throttled.
const MAX_SLOTS: usize = 32;

/// Upper bound of the factor by which few slots prolong the time limit of an upload. With one slot, a part of 16 MiB may
/// take 480 s, so 0.3 Mbit/s suffice.
const MAX_PROLONGATION: u32 = 8;

/// A request adds a slot if it takes at most this fraction of its time limit. One slot more then causes no timeout.
const FAST: f64 = 0.25;

/// Slots for requests of one kind.
pub(crate) struct TransferSlots {
    free: Semaphore,
    count: Mutex<SlotCount>,
}

struct SlotCount {
    size: usize,
    /// Slots that are in use but no longer exist. They vanish when their requests end.
    surplus: usize,
}

static LARGE_REQUESTS: TransferSlots = TransferSlots::new();
static SMALL_READS: TransferSlots = TransferSlots::new();

impl TransferSlots {
    const fn new() -> Self {
        Self { free: Semaphore::const_new(MAX_SLOTS), count: Mutex::new(SlotCount { size: MAX_SLOTS, surplus: 0 }) }
    }

    /// The slots for large requests, which all stores of this process share.
    pub(crate) fn large_requests() -> &'static Self {
        &LARGE_REQUESTS
    }

    /// The slots for small reads, which all stores of this process share. A small read does not wait for large requests.
    pub(crate) fn small_reads() -> &'static Self {
        &SMALL_READS
    }

    /// Number of slots, free or in use.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.lock().size
    }

    /// Waits for a free slot.
    pub(crate) async fn acquire(&self) -> Slot<'_> {
        // This fails only if the semaphore is closed, which never happens.
        Slot { permit: self.free.acquire().await.ok(), slots: self }
    }

    /// Time limit of an upload that has `limit` while all slots exist.
    pub(crate) fn prolonged(&self, limit: Duration) -> Duration {
        let factor = (MAX_SLOTS / self.lock().size) as u32;
        limit.saturating_mul(factor.min(MAX_PROLONGATION))
    }

    fn halve(&self) {
        let mut count = self.lock();
        let removed = count.size / 2;
        count.size -= removed;
        count.surplus += removed - self.free.forget_permits(removed);
    }

    fn add(&self) {
        let mut count = self.lock();
        if count.size == MAX_SLOTS {
            return;
        }
        count.size += 1;
        match count.surplus {
            0 => self.free.add_permits(1),
            _ => count.surplus -= 1,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotCount> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot in use. Dropping it frees the slot.
pub(crate) struct Slot<'a> {
    slots: &'a TransferSlots,
    permit: Option<SemaphorePermit<'a>>,
}

impl Slot<'_> {
    /// Reports that the request in this slot timed out or was throttled.
    pub(crate) fn overloaded(&self) {
        self.slots.halve();
    }

    /// Reports that the request in this slot took `elapsed` of `limit`.
    pub(crate) fn completed(&self, elapsed: Duration, limit: Duration) {
        if elapsed < limit.mul_f64(FAST) {
            self.slots.add();
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut count = self.slots.lock();
        if count.surplus > 0 {
            count.surplus -= 1;
            self.permit.take().into_iter().for_each(SemaphorePermit::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn timeouts_halve_the_slots_and_fast_requests_add_them_again() {
        let slots = TransferSlots::new();
        let take = || Slot { permit: slots.free.try_acquire().ok(), slots: &slots };
        let mut used: Vec<_> = (0..MAX_SLOTS).map(|_| take()).collect();
        assert!(take().permit.is_none());
        // All requests time out together.
        used.iter().for_each(Slot::overloaded);
        used.clear();
        assert_eq!((slots.free.available_permits(), slots.prolonged(LIMIT)), (1, LIMIT * MAX_PROLONGATION));
        take().completed(LIMIT / 2, LIMIT);
        assert_eq!(slots.free.available_permits(), 1, "a slow request adds no slot");
        for added in 1..=2 * MAX_SLOTS {
            take().completed(LIMIT / 5, LIMIT);
            assert_eq!(slots.free.available_permits(), (1 + added).min(MAX_SLOTS));
        }
        assert_eq!(slots.prolonged(LIMIT), LIMIT);
    }
}
