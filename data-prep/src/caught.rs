//! Panics of libraries that read damaged files.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work`, a function of a library that may panic if a file is damaged. Returns the message of the panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = IS_ACTIVE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_ACTIVE.set(before);
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("damaged").to_owned()
    })
}

/// True in the thread that runs [`caught`]: its panics become errors, and a panic hook should not report them.
#[must_use]
pub fn is_active() -> bool {
    IS_ACTIVE.get()
}
