//! Prefetching of remote row groups with several threads.
//!
//! The threads download row groups in the order in which they will be read. They stay a limited number of windows ahead
//! of the reader, so that the cache does not evict what has not been read yet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Dataset, DatasetError};

/// Number of concurrent downloads per process.
const PREFETCH_THREADS: usize = 8;
/// Number of attempts to download a row group.
const ATTEMPTS: usize = 5;
/// Pause after the first failed attempt. It doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Background download of row groups. After a drop, no further downloads start, and downloads in progress complete.
#[derive(Debug)]
pub struct Prefetch {
    shared: Arc<Shared>,
}

/// Iterator over windows: sets of row groups that are read together, in the order of reading.
pub type Windows = Box<dyn Iterator<Item = Vec<usize>> + Send>;

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the reader moves to another window, or when the prefetch stops.
    moved: Condvar,
}

struct State {
    windows: Windows,
    /// Number of windows taken from `windows`.
    taken: u64,
    /// Number of windows that the reader has left.
    passed: u64,
    /// Maximum number of windows ahead of the reader.
    ahead: u64,
    /// Row groups of the last window that have not been started.
    queue: VecDeque<usize>,
    /// Shards whose footer (or whole file) has been requested.
    shards: BTreeSet<usize>,
    /// True after the first warning.
    is_warned: bool,
    stop: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("State").field("taken", &self.taken).field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl Prefetch {
    /// Starts to download `windows`, at most `ahead` of them ahead of the reader. The first error is a warning: a later read
    /// of the row group downloads it again or reports the error.
    pub(super) fn start(dataset: &Arc<Dataset>, windows: Windows, ahead: u64) -> Self {
        let (queue, shards) = (VecDeque::new(), BTreeSet::new());
        let (is_warned, stop) = (false, false);
        let state = Mutex::new(State { windows, taken: 0, passed: 0, ahead, queue, shards, is_warned, stop });
        let shared = Arc::new(Shared { state, moved: Condvar::new() });
        for _ in 0..PREFETCH_THREADS {
            let (dataset, shared) = (dataset.clone(), shared.clone());
            let work = move || {
                while let Some((group, is_first)) = shared.next(&dataset) {
                    shared.attempt(|| dataset.prefetch(group, is_first));
                }
            };
            // If the thread cannot be started, row groups are downloaded on first use.
            drop(std::thread::Builder::new().name("fetch".to_owned()).spawn(work));
        }
        Self { shared }
    }

    /// Reports that the reader has left `windows` windows since the start.
    pub fn passed(&self, windows: u64) {
        let mut state = self.shared.state();
        if state.passed < windows {
            state.passed = windows;
            self.shared.moved.notify_all();
        }
    }
}

impl Shared {
    /// Calls `download` until it succeeds or the prefetch stops, at most [`ATTEMPTS`] times.
    fn attempt(&self, download: impl Fn() -> Result<(), DatasetError>) {
        let mut pause = FIRST_PAUSE;
        for _ in 0..ATTEMPTS {
            let Err(error) = download() else { return };
            let mut state = self.state();
            if !std::mem::replace(&mut state.is_warned, true) {
                let error = lambert_store::error::chain(&error);
                tracing::warn!("cannot prefetch row groups: {error}; each is downloaded when it is read");
            }
            let until = Instant::now() + pause;
            while !state.stop && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                state = self.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.stop {
                return;
            }
            pause *= 2;
        }
    }

    /// Waits until the reader is close enough. Returns the next row group, and true if it is the first of its shard.
    /// Returns `None` after a stop or after the last window.
    fn next(&self, dataset: &Dataset) -> Option<(usize, bool)> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if let Some(group) = state.queue.pop_front() {
                let is_first = state.shards.insert(dataset.row_groups()[group].shard);
                return Some((group, is_first));
            }
            if state.taken <= state.passed + state.ahead {
                let window = state.windows.next()?;
                // The reader has passed a window that it read before the prefetch came to it.
                if state.taken >= state.passed {
                    state.queue.extend(window);
                }
                state.taken += 1;
            } else {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.moved.notify_all();
    }
}
