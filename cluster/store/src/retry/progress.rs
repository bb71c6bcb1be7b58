//! Time limit of downloads, which ends only those that receive nothing.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time of the last progress of an attempt. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Reports that bytes have arrived.
    pub(crate) fn made(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn idle(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Runs `once`. Returns `None` if it makes no progress for the time `limit`.
    pub(super) async fn limited<T>(&self, limit: Duration, once: impl Future<Output = T>) -> Option<T> {
        let stalled = async {
            while let Some(left) = limit.checked_sub(self.idle()).filter(|left| !left.is_zero()) {
                tokio::time::sleep(left).await;
            }
        };
        // The download is polled first, so that bytes which arrived while the threads were busy still count.
        tokio::select! {
            biased;
            done = once => Some(done),
            () = stalled => None,
        }
    }
}
