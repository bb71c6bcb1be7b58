//! One small tokio runtime for the whole process, hidden behind blocking calls.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{TryRecvError, sync_channel};

use tokio::runtime::{Builder, Handle, Runtime};

/// Network work is waiting, not computing: two threads serve many requests at once.
const THREADS: usize = 2;

fn handle() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            let built = Builder::new_multi_thread().worker_threads(THREADS).thread_name("store").enable_all().build();
            // Only a system that gives this process no threads or no epoll gets here; nothing can go on then.
            built.unwrap_or_else(|source| panic!("cannot start the store's threads: {source}"))
        })
        .handle()
}

/// Starts `future` and returns a way to wait for it.
pub(crate) fn start<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Pending<T> {
    let (sender, receiver) = sync_channel(1);
    handle().spawn(async move {
        // The receiver is gone when nobody waits any more; the result is then of no use.
        let _ = sender.send(future.await);
    });
    Pending { receiver }
}

/// Runs computing work beside the runtime's own threads and waits for it without holding one up.
pub(crate) async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Runs `future` to its end while the calling thread waits.
///
/// The wait is on a standard channel and not in the runtime, so a thread that belongs to somebody else's
/// runtime may call this too (it then holds up that thread, nothing else).
pub(crate) fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    start(future).wait()
}

/// Work under way in the runtime.
pub(crate) struct Pending<T> {
    receiver: std::sync::mpsc::Receiver<T>,
}

impl<T> Pending<T> {
    /// The value, if it is there by now.
    pub(crate) fn take(&mut self) -> Option<T> {
        match self.receiver.try_recv() {
            Ok(value) => Some(value),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("a store task panicked; its message stands above"),
        }
    }

    pub(crate) fn wait(self) -> T {
        // The sender only vanishes without a value when the task itself panicked: a defect of this crate.
        self.receiver.recv().unwrap_or_else(|_| panic!("a store task panicked; its message stands above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_another_runtime_may_wait() {
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(other.block_on(async { wait(async { 7 }) }), 7);
    }

    #[test]
    fn many_threads_wait_at_once() {
        let threads: Vec<_> = (0..8).map(|i| std::thread::spawn(move || wait(async move { i }))).collect();
        let sum: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(sum, 28);
    }
}
