//! Progress of a command.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lambert_store::{Store, TransferObserver};

use crate::display;
use crate::terminal::shows_bars;

/// Progress of a command. A thread draws it as a bar on stderr, once the command has run for two seconds. The bar is
/// removed when the value is dropped.
///
/// The bar shows the amounts done and in total, the rate and the time left. Without a total, it shows the time elapsed.
/// Updates never wait for the terminal. Without a terminal, nothing is drawn.
///
/// A signal that ends the process removes the bar first. A command that handles signals itself calls
/// [`crate::signals::leave_to_command`].
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    display: Option<JoinHandle<()>>,
}

/// Unit of the amounts of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things with this plural name, such as `samples`.
    Count(&'static str),
}

impl Progress {
    /// Starts to show the progress of a phase such as `verifying`, in bytes.
    pub fn start(label: &str) -> Self {
        let shared = Arc::new(Shared { counts_bytes: AtomicBool::new(true), ..Shared::default() });
        shared.lock().label = label.to_owned();
        let drawn = Arc::clone(&shared);
        let draw = || std::thread::Builder::new().name("progress".into()).spawn(move || display::run(&drawn));
        // A command works without its bar, too.
        let display = if shows_bars() { draw().ok() } else { None };
        Self { shared, display }
    }

    /// Begins a phase, from zero.
    pub fn phase(&self, label: &str, unit: Unit) {
        let mut phase = self.shared.lock();
        let number = phase.number + 1;
        *phase = Phase { number, label: label.to_owned(), unit, detail: None };
        self.shared.counts_bytes.store(unit == Unit::Bytes, Ordering::Relaxed);
        self.shared.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// Changes the name of the phase.
    pub fn set_label(&self, label: &str) {
        self.shared.lock().label = label.to_owned();
    }

    /// Sets the total of the phase.
    pub fn set_total(&self, total: u64) {
        self.shared.counters[PLANNED].store(total, Ordering::Relaxed);
    }

    /// Sets the amount that is done.
    pub fn set_done(&self, done: u64) {
        self.shared.counters[DONE].store(done, Ordering::Relaxed);
    }

    /// Shows `detail` in place of the rate.
    pub fn set_detail(&self, detail: String) {
        self.shared.lock().detail = Some(detail);
    }

    /// Observer that adds the bytes of a store to the amount that is done, and the expected bytes to the total. It has no
    /// effect on a phase with another unit than bytes.
    pub fn observer(&self) -> Arc<dyn TransferObserver> {
        self.shared.clone()
    }

    /// Returns `store` with the observer of this progress.
    #[must_use]
    pub fn observe(&self, store: &Store) -> Store {
        store.observed_by(self.observer())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.enter(Stage::Ending);
        if self.display.is_some() {
            // A stopped terminal blocks the thread.
            self.shared.wait(LIMIT, |stage| stage == Stage::Ended);
        }
    }
}

/// Time limit for the removal of the bar.
const LIMIT: Duration = Duration::from_secs(1);

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

const DONE: usize = 0;
const PLANNED: usize = 1;
const EXPECTED: usize = 2;

/// State that the command updates and the drawing thread reads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    phase: Mutex<Phase>,
    /// Amount done, the total that the command set, and the total of the bytes that a store expects.
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
}

impl Shared {
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
        let progress = Progress::start("copying");
        let shown = || {
            let Snapshot { label, done, total, .. } = progress.shared.snapshot();
            (label, done, total)
        };
        progress.shared.transferred(5);
        assert_eq!(shown(), ("copying".to_owned(), 5, 0), "no total yet");
        progress.set_total(20);
        progress.shared.expected(30);
        assert_eq!(shown().2, 30);
        progress.shared.retracted(2);
        assert_eq!(shown().1, 3);
        progress.shared.transferred(40);
        assert_eq!(shown(), ("copying".to_owned(), 43, 43), "more than planned");
        progress.phase("writing", Unit::Count("files"));
        progress.shared.transferred(7);
        assert_eq!(shown(), ("writing".to_owned(), 0, 0));
    }
}
