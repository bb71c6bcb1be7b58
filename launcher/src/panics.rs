//! Panic handling. The first panic of any thread becomes a one-line error. No backtrace is printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::OnceLock;

use lambert_config::exit;
use lambert_data_prep::caught;

use crate::failure::{Failure, Outcome};

static FIRST: OnceLock<String> = OnceLock::new();

thread_local! {
    static IS_OPTIONAL: Cell<bool> = const { Cell::new(false) };
}

/// Internal error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Internal(String);

/// Runs a command. A panic in any thread makes the command fail, even if the command caught the panic. Exceptions are panics of
/// libraries on damaged files, which [`caught`] turns into errors, and panics of [optional](mark_optional) threads.
pub fn guard(command: impl FnOnce() -> Outcome) -> Outcome {
    std::panic::set_hook(Box::new(|info| match (caught::is_active(), IS_OPTIONAL.get()) {
        (true, _) => {}
        (false, true) => tracing::warn!("{}; the page of the run may be out of date", describe(info)),
        (false, false) => drop(FIRST.set(describe(info))),
    }));
    let outcome = catch_unwind(AssertUnwindSafe(command));
    match first() {
        Some(failure) => Err(failure),
        None => outcome.unwrap_or_else(|_| Err(failure("internal error; please report it"))),
    }
}

/// Marks this thread as one that serves the page of a run, which the run does not need. A panic of the thread becomes a warning.
pub fn mark_optional() {
    IS_OPTIONAL.set(true);
}

/// Failure that describes the first panic of any thread. `None` if no thread panicked.
pub fn first() -> Option<Failure> {
    FIRST.get().map(|message| failure(message))
}

fn failure(message: &str) -> Failure {
    Failure::coded(exit::FAILED, Internal(message.to_owned()))
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    message(thread.name().unwrap_or("without a name"), &place, info.payload_as_str().unwrap_or("no message"))
}

fn message(thread: &str, place: &str, payload: &str) -> String {
    let payload = payload.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("internal error in thread {thread} at {place}; please report it: {payload}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_an_optional_thread_is_no_failure() {
        let panicking = || {
            mark_optional();
            panic!("of a test");
        };
        let before = std::panic::take_hook();
        let outcome = guard(|| {
            assert!(std::thread::spawn(panicking).join().is_err());
            Ok(exit::DONE)
        });
        std::panic::set_hook(before);
        assert_eq!(outcome.map_err(|failure| failure.to_string()), Ok(exit::DONE));
    }

    #[test]
    fn a_panic_is_printed_as_one_line() {
        assert_eq!(
            message("lease", "src/lease.rs:33:9", "left != right\n  left: 1\n right: 2"),
            "internal error in thread lease at src/lease.rs:33:9; please report it: left != right left: 1 right: 2"
        );
    }
}
