//! Exits a worker whose threads cannot be joined: they compute in libtorch, wait in MPI, or block in a system call.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

/// Exits at once with `code`. Unlike [`std::process::exit`], this function runs no library destructors. Destructors
/// would free memory that other threads still use, and the process would crash.
pub fn exit_now(code: i32) -> ! {
    // Standard error and the log are unbuffered.
    let _ = std::io::stdout().flush();
    signal_hook::low_level::exit(code)
}

/// Exits with `code` if this process still runs after `limit`.
pub fn exit_after(limit: Duration, code: i32) {
    let exit = move || {
        std::thread::sleep(limit);
        tracing::error!(
            "the memory and the threads of this rank were not released within {} s; exiting",
            limit.as_secs()
        );
        exit_now(code)
    };
    // Without a thread, the coordinator ends this process.
    let _ = std::thread::Builder::new().name("exit".to_owned()).spawn(exit);
}

/// Returns the result of `work`. Returns `None` if `work` exceeds `limit`. The thread of
/// `work` then continues in the background.
pub fn run_with_timeout<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, done) = mpsc::channel();
    let work = move || drop(sender.send(work()));
    std::thread::Builder::new().name("bounded".to_owned()).spawn(work).ok()?;
    done.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_CHILD: &str = "LAMBERT_TEST_EXIT_AFTER";

    #[test]
    fn a_process_that_cannot_release_its_memory_exits() {
        if std::env::var_os(AS_CHILD).is_some() {
            exit_after(Duration::from_millis(50), 75);
            std::thread::sleep(Duration::from_secs(600));
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::leave::tests::a_process_that_cannot_release_its_memory_exits"])
            .env(AS_CHILD, "1")
            .output();
        assert_eq!(child.unwrap().status.code(), Some(75));
    }

    #[test]
    fn work_that_never_ends_times_out() {
        assert_eq!(run_with_timeout(Duration::from_secs(60), || 7), Some(7));
        assert_eq!(run_with_timeout(Duration::from_millis(10), || std::thread::sleep(Duration::from_secs(600))), None);
    }
}
