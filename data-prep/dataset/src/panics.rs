//! Catches panics of the Parquet library, which panics on some damaged or malicious files.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::errors::{ParquetError, Result};

/// Runs `work` and converts a panic into an error. After a panic, the caller must not use the state that `work`
/// modified.
pub fn catch_panics<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(ParquetError::General(format!("cannot decode it: {}", text.unwrap_or("the Parquet library panicked"))))
    })
}
