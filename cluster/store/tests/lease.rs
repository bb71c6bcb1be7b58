//! Leases: a run has one holder at a time, even if several processes acquire a lease concurrently.

use crate::s3_server::{Fault, Rule, Server};
use lambert_store::{Error, Lease, Store};

#[test]
fn the_newest_attempt_holds_the_run() {
    let (_folder, run) = crate::common::folder_store();
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

/// Object names can be forged. If an attempt number is too high to have a successor, the error names the object. Other
/// invalid names are ignored.
#[test]
fn an_attempt_without_successor_is_an_error_that_names_it() {
    for (object, number) in [
        ("lease-4294967295", u32::MAX),
        ("lease-4294967294", u32::MAX - 1),
        ("checkpoints/step-000000001-a4294967295/manifest.json", u32::MAX),
    ] {
        let (_folder, run) = crate::common::folder_store();
        Lease::take(&run).unwrap();
        run.put(object, "x".into()).unwrap();
        let refused = Lease::take(&run).unwrap_err().to_string();
        let name = object.trim_end_matches("/manifest.json");
        assert!(
            refused.contains(name) && refused.contains(&number.to_string()) && refused.contains("delete"),
            "{refused}"
        );
    }
    let (_folder, run) = crate::common::folder_store();
    for alien in ["lease-99999999999", "lease-+00007", "lease-8", "checkpoints/step-000000001-a99999999999/x"] {
        run.put(alien, "x".into()).unwrap();
    }
    assert_eq!(Lease::take(&run).unwrap().attempt(), 1);
    run.put("lease-4294967293", "x".into()).unwrap();
    let last = Lease::take(&run).unwrap();
    assert_eq!(last.attempt(), u32::MAX - 1);
    let refused = Lease::take_exactly(&run, last.attempt() + 1, "a").unwrap_err().to_string();
    assert!(refused.contains("lease-4294967294"), "{refused}");
}

/// Moving or removing the directory of a run ends the lease. A new directory at the same path is another run.
#[test]
fn a_missing_lease_is_lost() {
    for replaced in [false, true] {
        let (folder, run) = crate::common::folder_store();
        let lease = Lease::take(&run).unwrap();
        let worker = Lease::attach(&run, lease.attempt()).unwrap();
        std::fs::rename(run.url(), folder.path().join("moved")).unwrap();
        if replaced {
            Lease::take(&run).unwrap();
        }
        for lease in [&lease, &worker] {
            assert!(!lease.still_held().unwrap());
            let lost = lease.check().unwrap_err();
            assert!(lost.is_lease_lost() && lost.to_string().contains("lease-000001"), "{lost}");
        }
        let moved = Store::open(folder.path().join("moved").to_str().unwrap()).unwrap();
        assert!(Lease::attach(&moved, 1).unwrap().still_held().unwrap());
    }
}

/// A coordinator returns after another coordinator has started. It finds that the next lease is taken, and takes no
/// other lease.
#[test]
fn a_restart_takes_only_the_lease_after_its_own() {
    let (_folder, run) = crate::common::folder_store();
    let first = Lease::take(&run).unwrap();
    let second = Lease::take_exactly(&run, first.attempt() + 1, "a").unwrap().unwrap();
    assert!(second.still_held().unwrap());
    // The creation is repeated, as after a failure that hid its success.
    assert!(Lease::take_exactly(&run, first.attempt() + 1, "a").unwrap().is_some(), "it is the taker's own");
    assert!(Lease::take_exactly(&run, first.attempt() + 1, "b").unwrap().is_none(), "it is another's now");
    assert_eq!(Lease::newest(&run).unwrap(), Some(2), "and no later one was taken");
}

/// A coordinator that lost the response to its creation recognizes its own lease.
#[test]
fn a_lost_response_loses_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    let run = server.store("lost-answer");
    Lease::take(&run).unwrap();
    server.fail(Rule {
        method: "PUT".parse().unwrap(),
        contains: "lease-",
        after: 0,
        times: 2,
        fault: Fault::LoseAnswer,
    });
    assert_eq!(Lease::take_exactly(&run, 2, "a").unwrap().unwrap().attempt(), 2);
    assert_eq!(server.clear(), 2);
    assert!(Lease::take_exactly(&run, 2, "b").unwrap().is_none());
}

#[test]
fn a_store_without_create_only_writes_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    let run = server.store("careless");
    assert_eq!(Lease::take(&run).unwrap().attempt(), 1);
    server.ignore_conditions();
    let refused = Lease::take(&run).unwrap_err();
    assert!(matches!(refused, Error::NotCreateOnly { .. }), "{refused}");
    assert!(refused.to_string().contains("If-None-Match"), "{refused}");
}
