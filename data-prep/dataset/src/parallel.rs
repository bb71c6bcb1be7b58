//! Independent tasks on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `task` for each index in `0..count` on `threads` threads, including the calling thread. Returns the results in
/// order.
///
/// # Errors
/// Returns the error of the lowest failed index. After a failure no further tasks start.
pub fn parallel<T: Send, E: Send>(
    threads: usize,
    count: usize,
    task: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return results;
            }
            let result = task(index);
            if result.is_err() {
                next.store(count, Ordering::Relaxed);
            }
            results.push((index, result));
        }
    };
    let mut results: Vec<(usize, Result<T, E>)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(work)).collect();
        let mut results = work();
        for other in others {
            // Propagate a panic of the thread.
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
