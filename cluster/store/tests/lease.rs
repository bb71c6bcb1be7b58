//! One holder at a time, whoever comes and however many come at once.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod common;

use lambert_store::{Error, Lease, Store};

#[test]
fn the_newest_attempt_holds_the_run() {
    let (_folder, run) = common::folder_store();
    let first = Lease::take(&run).unwrap();
    assert!(first.still_held().unwrap());
    let worker = Lease::attach(&run, first.attempt()).unwrap();
    let second = Lease::take(&run).unwrap();
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
    assert!(!first.still_held().unwrap() && !worker.still_held().unwrap() && second.still_held().unwrap());
    assert!(matches!(worker.check(), Err(Error::LeaseLost { attempt: 1, newest: 2, .. })));
    assert!(Lease::attach(&run, 7).unwrap_err().is_not_found());
}

#[test]
fn attempts_that_start_together_get_different_numbers() {
    for url in ["memory://lease-race", "folder"] {
        let folder = tempfile::tempdir().unwrap();
        let url = if url == "folder" { folder.path().to_str().unwrap() } else { url };
        let run = Store::open(url).unwrap();
        let take = || {
            let run = run.clone();
            std::thread::spawn(move || Lease::take(&run).unwrap().attempt())
        };
        let threads: Vec<_> = (0..12).map(|_| take()).collect();
        let mut attempts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        attempts.sort_unstable();
        assert_eq!(attempts, (1..=12).collect::<Vec<_>>());
    }
}
