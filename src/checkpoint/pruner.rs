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
    /// True while a deletion runs.
    busy: Arc<(Mutex<bool>, Condvar)>,
}

impl Pruner {
    /// Starts to delete the checkpoints that `retention` does not select. The deletion stops if `lease` is lost. Does
    /// nothing while another deletion runs, because the next deletion covers these checkpoints too.
    pub fn start(&self, store: Store, lease: Lease, retention: Retention) {
        if std::mem::replace(&mut *self.lock(), true) {
            return;
        }
        // The guard is dropped when the thread ends, even by a panic, or here if the thread cannot start.
        let end = BusyGuard(self.clone());
        let prune = move || {
            let _end = end;
            match stored::retain_under(&lease, &store, &retention) {
                Ok(pruned) => tracing::debug!(objects = pruned.objects, "deleted old checkpoints"),
                Err(error) => tracing::warn!("cannot delete old checkpoints: {}", error::chain(&error)),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("prune".to_owned()).spawn(prune) {
            tracing::warn!("cannot delete old checkpoints: cannot start a thread: {error}");
        }
    }

    /// Waits for the running deletion.
    pub fn wait(&self) {
        drop(self.busy.1.wait_while(self.lock(), |busy| *busy));
    }

    /// Waits a limited time for the running deletion.
    pub fn finish(&self) {
        let waited = self.busy.1.wait_timeout_while(self.lock(), FINISH_TIMEOUT, |busy| *busy);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            tracing::info!("old checkpoints are still being deleted; the next attempt continues");
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct BusyGuard(Pruner);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.busy.1.notify_all();
    }
}
