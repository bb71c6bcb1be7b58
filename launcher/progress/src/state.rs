//! State of a command's progress, which the command updates and the drawing thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lambert_store::TransferObserver;

/// Unit of the amounts of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things with this plural name, such as `samples`.
    Count(&'static str),
}

/// Stage of the drawing thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Drawing,
    /// The command is over.
    Ending,
    /// The bar is removed.
    Ended,
}

/// Index of the amount done.
pub(crate) const DONE: usize = 0;
/// Index of the total that the command set.
pub(crate) const PLANNED: usize = 1;
/// Index of the total of the bytes that stores expect.
const EXPECTED: usize = 2;

/// State that the command updates and the drawing thread reads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    phase: Mutex<Phase>,
    counters: [AtomicU64; 3],
    counts_bytes: AtomicBool,
    stage: Mutex<Stage>,
    stage_changed: Condvar,
}

#[derive(Debug, Clone)]
struct Phase {
    number: usize,
    label: String,
    unit: Unit,
    detail: Option<String>,
}

impl Default for Phase {
    fn default() -> Self {
        Self { number: 0, label: String::new(), unit: Unit::Bytes, detail: None }
    }
}

/// State at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Number of the phase.
    pub phase: usize,
    pub label: String,
    pub unit: Unit,
    pub done: u64,
    /// 0: unknown.
    pub total: u64,
    pub detail: Option<String>,
}

impl Shared {
    /// First phase, in bytes.
    pub(crate) fn new(label: &str) -> Self {
        let shared = Self { counts_bytes: AtomicBool::new(true), ..Self::default() };
        shared.set_label(label);
        shared
    }

    /// Begins a phase, from zero.
    pub(crate) fn begin(&self, label: &str, unit: Unit) {
        let mut phase = self.lock();
        let number = phase.number + 1;
        *phase = Phase { number, label: label.to_owned(), unit, detail: None };
        self.counts_bytes.store(unit == Unit::Bytes, Ordering::Relaxed);
        self.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    pub(crate) fn set_label(&self, label: &str) {
        self.lock().label = label.to_owned();
    }

    pub(crate) fn set_detail(&self, detail: String) {
        self.lock().detail = Some(detail);
    }

    pub(crate) fn set(&self, counter: usize, value: u64) {
        self.counters[counter].store(value, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let phase = self.lock();
        let [done, planned, expected] = [DONE, PLANNED, EXPECTED].map(|at| self.counters[at].load(Ordering::Relaxed));
        let total = match planned.max(expected) {
            0 => 0,
            // Damaged objects are read twice.
            total => total.max(done),
        };
        let Phase { number, label, unit, detail } = phase.clone();
        Snapshot { phase: number, label, unit, done, total, detail }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
        self.stage_changed.notify_all();
    }

    /// Waits until the stage fulfils `condition`, at most `limit`. Returns false on timeout.
    pub(crate) fn wait(&self, limit: Duration, condition: impl Fn(Stage) -> bool) -> bool {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stage_changed.wait_timeout_while(stage, limit, |stage| !condition(*stage));
        condition(*waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn count_bytes(&self, counter: usize, change: impl Fn(u64) -> u64) {
        if self.counts_bytes.load(Ordering::Relaxed) {
            let changed = |bytes| Some(change(bytes));
            let _ = self.counters[counter].fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        }
    }
}

impl TransferObserver for Shared {
    fn expected(&self, bytes: u64) {
        self.count_bytes(EXPECTED, |expected| expected.saturating_add(bytes));
    }

    fn transferred(&self, bytes: u64) {
        self.count_bytes(DONE, |done| done.saturating_add(bytes));
    }

    fn retracted(&self, bytes: u64) {
        self.count_bytes(DONE, |done| done.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_plan_or_what_stores_expect() {
        let shared = Shared::new("copying");
        let shown = || {
            let Snapshot { label, done, total, .. } = shared.snapshot();
            (label, done, total)
        };
        shared.transferred(5);
        assert_eq!(shown(), ("copying".to_owned(), 5, 0), "no total yet");
        shared.set(PLANNED, 20);
        shared.expected(30);
        assert_eq!(shown().2, 30);
        shared.retracted(2);
        assert_eq!(shown().1, 3);
        shared.transferred(40);
        assert_eq!(shown(), ("copying".to_owned(), 43, 43), "more than planned");
        shared.begin("writing", Unit::Count("files"));
        shared.transferred(7);
        assert_eq!(shown(), ("writing".to_owned(), 0, 0));
    }
}
