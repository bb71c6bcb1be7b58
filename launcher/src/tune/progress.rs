//! Progress bar of a sweep: the steps of all runs, from the statuses in their stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lambert_progress::terminal::shows_bars;
use lambert_store::Store;

use super::runs::PlannedRun;
use crate::console::{self, Bar, BarState};
use crate::status::stored;
use crate::text::{clock, rate};

/// Interval between two reads of the statuses.
const PERIOD: Duration = Duration::from_secs(2);

/// Progress bar of a sweep, removed when dropped. A thread reads the statuses, so that a slow store does not delay the
/// sweep.
#[derive(Debug)]
pub struct SweepBar {
    shared: Arc<Mutex<SweepState>>,
    /// `None` without a terminal.
    _alive: Option<Sender<()>>,
}

#[derive(Debug, Default)]
struct SweepState {
    ended: BTreeSet<String>,
    is_over: bool,
}

impl SweepBar {
    /// Starts to show the progress of `runs` in `store`. `steps` is the number of steps by run.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(store: &Store, runs: &[PlannedRun], steps: &BTreeMap<String, u64>) -> std::io::Result<Self> {
        let shared = Arc::new(Mutex::new(SweepState::default()));
        if !shows_bars() {
            return Ok(Self { shared, _alive: None });
        }
        let (alive, ended) = channel::<()>();
        let named = |run: &PlannedRun| (run.name.clone(), steps.get(&run.name).copied().unwrap_or(0));
        let (runs, store): (BTreeMap<String, u64>, _) = (runs.iter().map(named).collect(), store.clone());
        let state = Arc::clone(&shared);
        std::thread::Builder::new().name("sweep-bar".into()).spawn(move || {
            let (start, mut first) = (Instant::now(), None);
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let over = lock(&state).ended.clone();
                let done =
                    runs.iter().map(|(name, steps)| if over.contains(name) { *steps } else { step(&store, name) });
                let (done, all) = (done.sum::<u64>(), runs.values().sum());
                let here = done.saturating_sub(*first.get_or_insert(done));
                let per_second = here as f64 / start.elapsed().as_secs_f64();
                let message = message(over.len(), runs.len(), per_second, all - done.min(all));
                let state = lock(&state);
                if !state.is_over {
                    console::draw(Bar::Shown(BarState { position: done, length: all, message }));
                }
            }
        })?;
        Ok(Self { shared, _alive: Some(alive) })
    }

    /// Counts a run as complete.
    pub fn end(&self, name: &str) {
        lock(&self.shared).ended.insert(name.to_owned());
    }
}

impl Drop for SweepBar {
    fn drop(&mut self) {
        lock(&self.shared).is_over = true;
        console::draw(Bar::Removed);
    }
}

fn lock(state: &Mutex<SweepState>) -> MutexGuard<'_, SweepState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Last step in the status of a run; 0 if the run has no status yet or the status cannot be read.
fn step(store: &Store, name: &str) -> u64 {
    let status = store.join(name).ok().and_then(|run| stored::read(&run).ok().flatten());
    status.map_or(0, |status| status.progress.step)
}

/// Formats the text after the bar: `steps, 3/8 runs, 81 steps/s, ETA 4:05`.
fn message(ended: usize, runs: usize, per_second: f64, left: u64) -> String {
    let mut text = format!("steps, {ended}/{runs} runs");
    if per_second > 0.0 {
        text += &format!(", {} steps/s, ETA {}", rate(per_second), clock(left as f64 / per_second));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_runs_rate_and_time_left() {
        assert_eq!(message(3, 8, 81.0, 19_845), "steps, 3/8 runs, 81 steps/s, ETA 4:05");
        assert_eq!(message(0, 8, 0.0, 9), "steps, 0/8 runs");
    }
}
