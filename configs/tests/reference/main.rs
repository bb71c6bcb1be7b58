//! Files generated from the configuration types: the JSON schemas in configs/ and the tables of
//! docs/reference/configuration.md and preparation.md. With `LAMBERT_WRITE_DOCS=1` the tests write them.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod parser;
mod schema;
mod shipped;
mod tables;
mod validator;

use std::path::{Path, PathBuf};

/// Returns the path of a file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares a file of the repository with its generated `text`, or writes it.
fn compare_or_write(path: &str, text: &str) {
    let file = repository(path);
    if std::env::var_os("LAMBERT_WRITE_DOCS").is_some() {
        std::fs::write(file, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines = found.lines().zip(text.lines()).enumerate();
    let (number, (found_line, line)) = lines.find(|(_, (a, b))| a != b).unwrap_or_default();
    let hint = "LAMBERT_WRITE_DOCS=1 cargo test --release --workspace --test reference writes it";
    assert!(found == text, "{path}:{}: {found_line:?} should be {line:?}; {hint}", number + 1);
}
