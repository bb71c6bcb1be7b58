//! Prefetching of remote shards with several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Dataset;

/// Number of concurrent downloads per process.
const PREFETCH_THREADS: usize = 4;

/// Background download of shards. After a drop, no further downloads start, and downloads in progress complete.
#[derive(Debug)]
pub struct ShardPrefetch {
    stop: Arc<AtomicBool>,
}

impl ShardPrefetch {
    /// Starts to download `shards` in this order. Errors are ignored, because a later read of the shard reports them.
    pub fn start(dataset: &Arc<Dataset>, shards: Vec<usize>) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let shards = Arc::new(shards);
        for _ in 0..PREFETCH_THREADS.min(shards.len()) {
            let (dataset, shards, stop, next) = (dataset.clone(), shards.clone(), stop.clone(), next.clone());
            let work = move || {
                while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed))
                    && !stop.load(Ordering::Relaxed)
                {
                    // The reader of the shard gets the same error.
                    let _ = dataset.fetch(*shard);
                }
            };
            // If the thread cannot be started, shards are downloaded on first use.
            drop(std::thread::Builder::new().name("fetch".to_owned()).spawn(work));
        }
        Self { stop }
    }
}

impl Drop for ShardPrefetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
