//! The end of a worker beside threads that cannot be joined: they compute in libtorch, wait in MPI, or are stuck in a system
//! call.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

/// Ends this process at once with `code`. Unlike [`std::process::exit`] it runs no destructor of a library, which would free
/// what other threads still use: that ends in a segmentation fault.
pub fn now(code: i32) -> ! {
    // Standard error and the log have no buffer.
    let _ = std::io::stdout().flush();
    signal_hook::low_level::exit(code)
}

/// What `work` gives if it ends within `limit`; otherwise it goes on, on a thread of its own, until the process ends.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, done) = mpsc::channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name("bounded".to_owned()).spawn(work).ok()?;
    done.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        assert_eq!(within(Duration::from_millis(10), || std::thread::sleep(Duration::from_secs(600))), None);
    }
}
