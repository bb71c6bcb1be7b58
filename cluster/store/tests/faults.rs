//! Tests with faults injected between the client and an S3 server.

use std::time::Duration;

use crate::common::{CollectingSink, OBJECTS, content, path, save};
use crate::s3_server::{Fault, RandomFaults, Rule, SECRET_KEY, Server, fast_retries};
use bytes::Bytes;
use lambert_store::checkpoint::{self, Retention};
use lambert_store::{Error, Lease, RetryPolicy, Store};

fn server() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    (folder, server)
}

const STALL: Fault = Fault::Stall(Duration::from_millis(1500));

/// Transient faults: a retry succeeds after them.
const TRANSIENT: [Fault; 7] = [
    Fault::Refuse(500, "InternalError"),
    Fault::Refuse(503, "SlowDown"),
    Fault::Refuse(429, "TooManyRequests"),
    Fault::Reset,
    Fault::LoseAnswer,
    Fault::CutBody,
    STALL,
];

/// Retry policy with a request timeout that is shorter than a stall.
fn short_timeouts() -> RetryPolicy {
    RetryPolicy {
        request_timeout: Duration::from_millis(700),
        total_timeout: Duration::from_secs(20),
        ..fast_retries()
    }
}

fn inject(server: &Server, method: &str, contains: &'static str, times: usize, fault: Fault) {
    server.fail(Rule { method: method.parse().unwrap(), contains, after: 0, times, fault });
}

/// Runs `operation` once per fault. The fault hits the first two requests with `method`.
fn assert_retried(method: &str, operation: impl Fn(&Store, Fault)) {
    let (_folder, server) = server();
    let store = server.store_with("x", SECRET_KEY, short_timeouts());
    let has_body = method == "GET";
    for fault in TRANSIENT.into_iter().filter(|fault| has_body || *fault != Fault::CutBody) {
        store.put("object", Bytes::from_static(b"0123456789")).unwrap();
        inject(&server, method, "", 2, fault);
        operation(&store, fault);
        assert_eq!(server.clear(), 2, "{fault:?}");
    }
}

#[test]
fn reads_are_retried() {
    assert_retried("GET", |store, fault| assert_eq!(store.get("object").unwrap(), "0123456789", "{fault:?}"));
    assert_retried("GET", |store, fault| assert_eq!(store.get_range("object", 2..5).unwrap(), "234", "{fault:?}"));
}

#[test]
fn lookups_and_listings_are_retried() {
    assert_retried("HEAD", |store, _| assert_eq!(store.head("object").unwrap(), Some(10)));
    assert_retried("GET", |store, fault| assert_eq!(store.list("").unwrap().len(), 1, "{fault:?}"));
}

#[test]
fn writes_and_deletions_are_retried() {
    assert_retried("PUT", |store, _| {
        store.put("object", Bytes::from_static(b"new")).unwrap();
        assert_eq!(store.get("object").unwrap(), "new");
    });
    assert_retried("POST", |store, _| {
        store.delete("object").unwrap();
        assert_eq!(store.head("object").unwrap(), None);
    });
}

#[test]
fn a_create_with_a_lost_response_recognizes_its_object() {
    let (_folder, server) = server();
    let store = server.store_with("x", SECRET_KEY, short_timeouts());
    for fault in TRANSIENT {
        inject(&server, "PUT", "", 2, fault);
        assert!(store.put_new("mine", Bytes::from_static(b"mine")).unwrap(), "{fault:?}");
        assert_eq!(server.clear(), 2);
        inject(&server, "PUT", "", 2, fault);
        assert!(!store.put_new("mine", Bytes::from_static(b"other")).unwrap(), "{fault:?}");
        assert_eq!(store.get("mine").unwrap(), "mine");
        server.clear();
        store.delete("mine").unwrap();
    }
    let run = server.store_with("run", SECRET_KEY, short_timeouts());
    inject(&server, "PUT", "lease", 3, Fault::LoseAnswer);
    assert_eq!(Lease::take(&run).unwrap().attempt(), 1);
}

#[test]
fn every_request_of_a_large_upload_is_retried() {
    let (_folder, server) = server();
    let store = server.store_with(
        "x",
        SECRET_KEY,
        RetryPolicy { request_timeout: Duration::from_secs(10), ..short_timeouts() },
    );
    let bytes = Bytes::from(vec![7; 17 << 20]);
    for fault in [Fault::Refuse(503, "SlowDown"), Fault::Reset, Fault::LoseAnswer] {
        inject(&server, "POST", "uploads", 1, fault);
        inject(&server, "PUT", "partNumber=", 2, fault);
        inject(&server, "POST", "uploadId=", 1, fault);
        let sha256 = store.put_hashed("large", bytes.clone()).unwrap();
        assert_eq!(server.clear(), 4, "{fault:?}");
        assert_eq!(sha256, lambert_store::hash::sha256(&store.get("large").unwrap()), "{fault:?}");
        store.delete("large").unwrap();
    }
}

#[test]
fn a_wrong_response_does_not_reject_an_intact_checkpoint() {
    let (_folder, server) = server();
    let run = server.store_with("run", SECRET_KEY, short_timeouts());
    let lease = Lease::take(&run).unwrap();
    save(&run, &lease, 50);
    let name = save(&run, &lease, 100);
    for fault in [Fault::WrongBody, Fault::ShortBody, Fault::CutBody] {
        for object in ["manifest.json", OBJECTS[0], OBJECTS[1]] {
            inject(&server, "GET", object, 1, fault);
            let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
            assert_eq!((found.unwrap().0, passed_over), (name.clone(), vec![]), "{fault:?} in {object}");
            assert_eq!(server.clear(), 1);
        }
        let verified = checkpoint::verify(&run, &name).unwrap();
        inject(&server, "GET", OBJECTS[0], 1, fault);
        let read = checkpoint::read_object(&run, &verified.manifest, OBJECTS[0]).unwrap();
        assert_eq!((read, server.clear()), (content(OBJECTS[0], 100, 1), 1));
        inject(&server, "GET", OBJECTS[0], 1, fault);
        let mut streamed = CollectingSink::default();
        checkpoint::stream_object(&run, &verified, OBJECTS[0], &mut streamed).unwrap();
        assert_eq!((streamed.0, server.clear()), (content(OBJECTS[0], 100, 1).to_vec(), 1));
    }
}

#[test]
fn a_checkpoint_with_a_damaged_object_is_skipped() {
    let (_folder, server) = server();
    let run = server.store_with("run", SECRET_KEY, short_timeouts());
    let lease = Lease::take(&run).unwrap();
    let older = save(&run, &lease, 50);
    save(&run, &lease, 100);
    inject(&server, "GET", "step-000000100-a0001/model", usize::MAX, Fault::WrongBody);
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    assert_eq!(found.unwrap().0, older);
    assert!(passed_over[0].why.contains("sha256"), "{passed_over:?}");
}

#[test]
fn an_unreachable_store_never_selects_an_older_checkpoint() {
    let (_folder, server) = server();
    let run = server.store_with(
        "run",
        SECRET_KEY,
        RetryPolicy { total_timeout: Duration::from_millis(200), ..fast_retries() },
    );
    let lease = Lease::take(&run).unwrap();
    save(&run, &lease, 50);
    save(&run, &lease, 100);
    for fault in [Fault::Reset, Fault::Refuse(503, "SlowDown"), Fault::Refuse(403, "AccessDenied")] {
        inject(&server, "GET", "step-000000100-a0001", usize::MAX, fault);
        let error = checkpoint::newest_verified(&run).unwrap_err();
        assert!(matches!(error, Error::Failed { .. } | Error::Denied { .. }), "{fault:?}: {error:?}");
        assert!(checkpoint::prune(&run, 1).is_err());
        server.clear();
    }
    assert_eq!(checkpoint::list(&run).unwrap().len(), 2);
}

#[test]
fn a_failed_save_leaves_the_earlier_checkpoints_alone() {
    let (_folder, server) = server();
    let run = server.store_with(
        "run",
        SECRET_KEY,
        RetryPolicy { total_timeout: Duration::from_millis(100), ..fast_retries() },
    );
    let lease = Lease::take(&run).unwrap();
    let first = save(&run, &lease, 50);
    inject(&server, "PUT", "", usize::MAX, Fault::Refuse(503, "SlowDown"));
    let writer = checkpoint::CheckpointWriter::new(&run, 100, 1);
    assert!(writer.put_object(OBJECTS[0], Bytes::from_static(b"x")).is_err());
    server.clear();
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    assert_eq!((found.unwrap().0, passed_over), (first, vec![]));
    save(&run, &lease, 100);
}

/// Runs the operations of a training run. On average, every fourth request fails. No data may be lost or wrong.
#[test]
fn a_run_survives_random_faults() {
    let (_folder, server) = server();
    let run = server.store_with("run", SECRET_KEY, short_timeouts());
    let faults = TRANSIENT.into_iter().filter(|fault| *fault != STALL).collect();
    server.random_faults(Some(RandomFaults { per_mille: 250, faults, seed: 7 }));
    for attempt in 1..=3 {
        let lease = Lease::take(&run).unwrap();
        assert_eq!(lease.attempt(), attempt);
        for step in 1..=8 {
            let name = save(&run, &lease, u64::from(attempt) * 1000 + step);
            assert!(lease.still_held().unwrap());
            let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
            assert_eq!((found.unwrap().0, passed_over), (name.clone(), vec![]));
            let retention = Retention { last: 2, known_intact: Some(name), ..Retention::default() };
            checkpoint::retain(&run, &retention).unwrap();
        }
    }
    assert!(server.clear() > 100);
    let names: Vec<_> = checkpoint::list(&run).unwrap().into_iter().map(|listed| listed.name).collect();
    assert_eq!(names, ["step-000003008-a0003", "step-000003007-a0003"]);
    assert_eq!(run.list("checkpoints").unwrap().len(), 6, "nothing is left behind");
    for name in names {
        checkpoint::verify(&run, &name).unwrap();
        assert!(run.head(&path(&name, "manifest.json")).unwrap().is_some());
    }
}
