//! Calls of the Parquet library, which panics at some files that are damaged or made to harm.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::errors::{ParquetError, Result};

/// Does `work`; a panic becomes an error. What `work` has changed by then must not be used.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(ParquetError::General(format!("it cannot be decoded: {}", text.unwrap_or("the Parquet library panicked"))))
    })
}
