//! Removes old checkpoints beside the training, one save's at a time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lambert_store::checkpoint::{self as stored, Retention};
use lambert_store::{Lease, Store};

use crate::error;

/// How long the end of an attempt waits for it. What is left then is removed by the next attempt.
const AT_THE_END: Duration = Duration::from_secs(10);

/// At most one removal under way. Its clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Pruner {
    /// Whether one is under way.
    busy: Arc<(Mutex<bool>, Condvar)>,
}

impl Pruner {
    /// Removes in the background what `retention` does not keep, as long as `lease` is held. Where one is under way nothing begins:
    /// the next removes what both would.
    pub fn start(&self, store: Store, lease: Lease, retention: Retention) {
        if std::mem::replace(&mut *self.lock(), true) {
            return;
        }
        // Dropped at the end of the thread whatever happens there, and here if there is no thread.
        let end = End(self.clone());
        let prune = move || {
            let _end = end;
            match stored::retain_under(&lease, &store, &retention) {
                Ok(pruned) => tracing::debug!("removed {} object(s) of old checkpoints", pruned.objects),
                Err(error) => tracing::warn!("old checkpoints could not be removed: {}", error::chain(&error)),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("prune".to_owned()).spawn(prune) {
            tracing::warn!("old checkpoints could not be removed: no thread for it: {error}");
        }
    }

    /// Waits until none is under way.
    pub fn wait(&self) {
        drop(self.busy.1.wait_while(self.lock(), |busy| *busy));
    }

    /// Waits for the end of the one under way, if it comes soon.
    pub fn finish(&self) {
        let waited = self.busy.1.wait_timeout_while(self.lock(), AT_THE_END, |busy| *busy);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            tracing::info!("old checkpoints are still being removed: the next attempt goes on with it");
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct End(Pruner);

impl Drop for End {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.busy.1.notify_all();
    }
}
