//! Tests of object stores, leases and checkpoints, one module per subject. A single test program links once.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod azure;
mod checkpoint;
mod common;
mod faults;
mod foreign_files;
mod lease;
mod local;
mod observer;
mod retention;
mod s3;
mod s3_server;
mod scale;
mod slow_link;
mod store;
