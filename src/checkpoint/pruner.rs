//! Deletes old checkpoints in the background.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lambert_store::checkpoint::{self as stored, Retention};
use lambert_store::{Lease, Store};

use crate::error;

/// Maximum time that an attempt waits for a deletion before it ends. The next attempt deletes the rest.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs at most one deletion at a time. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Pruner {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// True while a thread deletes.
    busy: bool,
    /// The latest request that arrived while the thread was busy. It follows when the current deletion ends.
    next: Option<Deletion>,
}

type Deletion = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl Pruner {
    /// Starts to delete the checkpoints that `retention` does not select. The deletion stops if `lease` is lost. If
    /// another deletion runs, this one follows it, unless a later call replaces it.
    pub fn start(&self, store: Store, lease: Lease, retention: Retention) {
        self.enqueue(Box::new(move || match stored::retain_under(&lease, &store, &retention) {
            Ok(pruned) => tracing::debug!(objects = pruned.objects, "deleted old checkpoints"),
            Err(error) => tracing::warn!("cannot delete old checkpoints: {}", error::chain(&error)),
        }));
    }

    fn enqueue(&self, deletion: Deletion) {
        let mut state = self.lock();
        if state.busy {
            state.next = Some(deletion);
            return;
        }
        state.busy = true;
        drop(state);
        let mut turn = Turn { pruner: self.clone(), is_over: false };
        let delete = move || {
            let mut deletion = Some(deletion);
            while let Some(delete) = deletion {
                delete();
                deletion = turn.next();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("prune".to_owned()).spawn(delete) {
            tracing::warn!("cannot delete old checkpoints: cannot start a thread: {error}");
        }
    }

    /// Waits for the running deletion and the one that follows it.
    pub fn wait(&self) {
        drop(self.shared.1.wait_while(self.lock(), |state| state.busy));
    }

    /// Waits a limited time for the running deletion and the one that follows it.
    pub fn finish(&self) {
        let waited = self.shared.1.wait_timeout_while(self.lock(), FINISH_TIMEOUT, |state| state.busy);
        if waited.unwrap_or_else(PoisonError::into_inner).0.busy {
            tracing::info!("old checkpoints are still being deleted; the next attempt continues");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of the thread that deletes.
struct Turn {
    pruner: Pruner,
    is_over: bool,
}

impl Turn {
    /// Returns the deletion that follows. Without one, the turn is over.
    fn next(&mut self) -> Option<Deletion> {
        let mut state = self.pruner.lock();
        let next = state.next.take();
        if next.is_none() {
            (state.busy, self.is_over) = (false, true);
            self.pruner.shared.1.notify_all();
        }
        next
    }
}

/// Ends the turn if the thread panicked or could not start.
impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            *self.pruner.lock() = State::default();
            self.pruner.shared.1.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_last_request_during_a_deletion_follows_it() {
        let (pruner, (done, ran)) = (Pruner::default(), channel());
        let (go, wait) = channel::<()>();
        let deletion = |number: u32| {
            let done = done.clone();
            move || done.send(number).unwrap()
        };
        let first = deletion(1);
        pruner.enqueue(Box::new(move || {
            wait.recv().unwrap();
            first();
        }));
        pruner.enqueue(Box::new(deletion(2)));
        pruner.enqueue(Box::new(deletion(3)));
        go.send(()).unwrap();
        pruner.finish();
        assert_eq!(ran.try_iter().collect::<Vec<_>>(), [1, 3]);
        pruner.enqueue(Box::new(deletion(4)));
        pruner.wait();
        assert_eq!(ran.try_iter().collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let pruner = Pruner::default();
        pruner.enqueue(Box::new(|| panic!("a deletion that fails on purpose")));
        pruner.wait();
    }
}
