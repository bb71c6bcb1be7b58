//! Shards that are fetched before they are needed, several at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Dataset;

/// Shards that a process fetches at the same time.
const THREADS: usize = 4;

/// Fetches shards as long as it lives, and ends what it has begun.
#[derive(Debug)]
pub struct FetchAhead {
    stop: Arc<AtomicBool>,
}

impl FetchAhead {
    /// Begins to fetch `shards` in this order, as far as they fit into the cache together. What fails is left to whoever needs
    /// the shard.
    pub fn start(dataset: &Arc<Dataset>, shards: Vec<usize>) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let shards = Arc::new(shards);
        for _ in 0..THREADS.min(shards.len()) {
            let (dataset, shards, stop, next) = (dataset.clone(), shards.clone(), stop.clone(), next.clone());
            let work = move || {
                while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed))
                    && !stop.load(Ordering::Relaxed)
                {
                    // Whoever needs the shard meets the same fault.
                    let _ = dataset.fetch(*shard);
                }
            };
            // Without it shards are fetched when they are needed.
            drop(std::thread::Builder::new().name("fetch".to_owned()).spawn(work));
        }
        Self { stop }
    }
}

impl Drop for FetchAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
