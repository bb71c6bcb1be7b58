//! Process-wide tokio runtime that executes the requests of blocking calls.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{TryRecvError, sync_channel};

use tokio::runtime::{Builder, Handle, Runtime};

/// Number of runtime threads. Requests mostly wait for the network, so two threads serve many concurrent requests.
const THREADS: usize = 2;

fn handle() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let built = Builder::new_multi_thread().worker_threads(THREADS).thread_name("store").enable_all().build();
            // This fails only if the system denies threads or epoll, which is unrecoverable.
            built.unwrap_or_else(|source| panic!("cannot start the store's threads: {source}"))
        })
        .handle()
}

/// Spawns `future` and returns a handle to its result.
pub(crate) fn start<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Pending<T> {
    let (sender, receiver) = sync_channel(1);
    handle().spawn(async move {
        // A dropped receiver means that the result is no longer needed.
        let _ = sender.send(future.await);
    });
    Pending { receiver }
}

/// Runs CPU-bound work on the blocking pool, off the worker threads of the runtime.
pub(crate) async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Blocks the calling thread until `future` completes.
///
/// Waits on a channel of std, not in the runtime. Therefore a thread of another async runtime may call this. Only that
/// thread is blocked.
pub(crate) fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    start(future).wait()
}

/// A spawned task.
pub(crate) struct Pending<T> {
    receiver: std::sync::mpsc::Receiver<T>,
}

impl<T> Pending<T> {
    /// Returns the value if the task has completed.
    pub(crate) fn take(&mut self) -> Option<T> {
        match self.receiver.try_recv() {
            Ok(value) => Some(value),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("a store task panicked; see its message above"),
        }
    }

    pub(crate) fn wait(self) -> T {
        // The sender is dropped without a value only if the task panicked, which is a bug in this crate.
        self.receiver.recv().unwrap_or_else(|_| panic!("a store task panicked; see its message above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_another_runtime_can_wait() {
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(other.block_on(async { wait(async { 7 }) }), 7);
    }

    #[test]
    fn many_threads_can_wait_concurrently() {
        let threads: Vec<_> = (0..8).map(|i| std::thread::spawn(move || wait(async move { i }))).collect();
        let sum: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(sum, 28);
    }
}
