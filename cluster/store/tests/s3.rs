//! Tests over HTTP with credentials against an S3 server.

use crate::common::{OBJECTS, behaviour, content, manifest, save};
use crate::s3_server::{Fault, Rule, SECRET_KEY, Server, fast_retries};
use bytes::Bytes;
use lambert_store::checkpoint::{CheckpointWriter, Retention};
use lambert_store::{Error, Lease, RetryPolicy, checkpoint};

fn server() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    (folder, server)
}

/// Rule that makes the next PUT fail with this HTTP status and this S3 error code.
fn refuse(status: u16, code: &'static str) -> Rule {
    Rule { method: "PUT".parse().unwrap(), contains: "/x/", after: 0, times: 1, fault: Fault::Refuse(status, code) }
}

/// Formats an error with its sources.
fn shown(error: &dyn std::error::Error) -> String {
    let source = error.source().map(shown).unwrap_or_default();
    format!("{error}: {source}")
}

#[test]
fn behaves_like_every_store() {
    let (_folder, server) = server();
    behaviour::run_all_checks(&server.store("some/prefix"));
}

#[test]
fn large_objects_are_transferred_in_parts() {
    let (_folder, server) = server();
    let store = server.store("large");
    let bytes: Bytes = (0..40_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sha256 = store.put_hashed("object", bytes.clone()).unwrap();
    assert_eq!(sha256, lambert_store::hash::sha256(&bytes));
    let parts = server.requests().iter().filter(|request| request.contains("partNumber=")).count();
    assert_eq!(parts, 3);
    let mut read = Vec::new();
    store.read_pieces("object", bytes.len() as u64, |piece| read.extend_from_slice(piece)).unwrap();
    assert!(read == bytes);
    let ranges = server.requests().iter().filter(|request| request.starts_with("GET")).count();
    assert_eq!(ranges, 3);
}

#[test]
fn a_run_lives_in_a_bucket() {
    let (_folder, server) = server();
    let run = server.store("run");
    let first = Lease::take(&run).unwrap();
    save(&run, &first, 50);
    save(&run, &first, 100);
    let second = Lease::take(&run).unwrap();
    assert!(!first.still_held().unwrap());
    let newest = save(&run, &second, 150);
    assert_eq!(checkpoint::prune(&run, 1).unwrap().checkpoints.len(), 2);
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    let (name, verified) = found.unwrap();
    assert_eq!((name, passed_over), (newest, vec![]));
    assert_eq!(checkpoint::read_object(&run, &verified.manifest, OBJECTS[0]).unwrap(), content(OBJECTS[0], 150, 2));
}

/// Pruning lists the run twice. Between these two listings, a save commits and a new attempt starts.
#[test]
fn a_checkpoint_that_is_committed_while_another_process_prunes_stays() {
    let (_folder, server) = server();
    let run = server.store("busy");
    let lease = Lease::take(&run).unwrap();
    save(&run, &lease, 50);
    let writer = CheckpointWriter::new(&run, 100, lease.attempt());
    let prepared = manifest(&writer, 100, lease.attempt());
    let elsewhere = run.clone();
    server.before("GET /runs?", 1, move || {
        writer.commit(&prepared, &lease).unwrap();
        Lease::take(&elsewhere).unwrap();
    });
    let pruned = checkpoint::prune(&run, 5).unwrap();
    assert!(!server.has_hook(), "pruning makes two listings at least");
    assert_eq!((pruned.checkpoints.len(), pruned.objects), (0, 0));
    let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
    assert_eq!((found.unwrap().0, passed_over), ("step-000000100-a0001".to_owned(), vec![]));
}

/// With `keep = 1`, the newest checkpoint of a listing can be deleted before it is read. Selection must then not fall
/// back to an older checkpoint that was retained by name.
#[test]
fn a_checkpoint_that_is_pruned_while_it_is_read_is_followed_by_the_next() {
    // Before the manifest is read, before the sizes of the objects are listed, and before an object is read.
    for (contains, earlier) in
        [("GET /runs/live/checkpoints", 0), ("GET /runs?", 1), ("GET /runs/live/checkpoints/step-000000050-a0001/o", 0)]
    {
        let (_folder, server) = server();
        let run = server.store("live");
        let lease = Lease::take(&run).unwrap();
        let best = save(&run, &lease, 25);
        save(&run, &lease, 50);
        let retention = Retention { last: 1, named: [best].into(), ..Retention::default() };
        let elsewhere = run.clone();
        server.before(contains, earlier, move || {
            save(&elsewhere, &lease, 100);
            assert_eq!(checkpoint::retain(&elsewhere, &retention).unwrap().checkpoints, ["step-000000050-a0001"]);
        });
        let (found, passed_over) = checkpoint::newest_verified(&run).unwrap();
        assert!(!server.has_hook());
        assert_eq!((found.unwrap().0, passed_over), ("step-000000100-a0001".to_owned(), vec![]), "{contains}");
    }
}

/// A new attempt takes the lease while the old attempt deletes its first checkpoint. The old attempt must not delete
/// another one.
#[test]
fn an_attempt_deletes_nothing_after_losing_its_lease() {
    let (_folder, server) = server();
    let run = server.store("lost");
    let lease = Lease::take(&run).unwrap();
    for step in [50, 100, 150] {
        save(&run, &lease, step);
    }
    let elsewhere = run.clone();
    server.before("POST /runs?delete", 1, move || drop(Lease::take(&elsewhere).unwrap()));
    let retention = Retention { last: 1, ..Retention::default() };
    assert!(checkpoint::retain_under(&lease, &run, &retention).unwrap_err().is_lease_lost());
    assert!(!server.has_hook());
    let left: Vec<u64> = checkpoint::list(&run).unwrap().iter().map(|listed| listed.position.step).collect();
    assert_eq!(left, [150, 100]);
    assert!(checkpoint::retain_under(&lease, &run, &retention).unwrap_err().is_lease_lost());
    assert_eq!(checkpoint::list(&run).unwrap().len(), 2);
}

#[test]
fn many_objects_are_deleted_by_few_requests() {
    let (_folder, server) = server();
    let store = server.store("many");
    let names: Vec<String> = (0..30).map(|number| format!("a/{number}")).collect();
    names.iter().for_each(|name| store.put(name, Bytes::from_static(b"x")).unwrap());
    server.requests();
    server.fail(Rule { method: "POST".parse().unwrap(), contains: "", after: 0, times: 1, fault: Fault::LoseAnswer });
    store.delete_all(&[&names[..], &["never/there".to_owned()]].concat()).unwrap();
    let requests = server.requests();
    assert!(requests.len() == 2 && requests.iter().all(|request| request.contains("delete")), "{requests:?}");
    assert_eq!(store.list("").unwrap(), []);
}

/// Models two submissions: the first deletes its claim while the second reads that claim.
#[test]
fn an_object_deleted_during_creation_is_created() {
    let (_folder, server) = server();
    let store = server.store("claims");
    assert!(store.put_new("claim", "theirs".into()).unwrap());
    let elsewhere = store.clone();
    server.before("GET /runs/claims/claim", 0, move || elsewhere.delete("claim").unwrap());
    assert!(store.put_new("claim", "ours".into()).unwrap());
    assert!(!server.has_hook());
    assert_eq!(store.get("claim").unwrap(), "ours");
}

#[test]
fn one_of_many_concurrent_creators_succeeds() {
    let (_folder, server) = server();
    let run = server.store("race");
    let take = |_| {
        let run = run.clone();
        std::thread::spawn(move || Lease::take(&run).unwrap().attempt())
    };
    let threads: Vec<_> = (0..8).map(take).collect();
    let mut attempts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, (1..=8).collect::<Vec<_>>());
}

#[test]
fn a_wrong_secret_is_denied_at_once_and_not_shown() {
    let (_folder, server) = server();
    let store = server.store_with("x", "not-the-secret-of-this-server", fast_retries());
    let error = store.put("object", Bytes::from_static(b"x")).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let text = shown(&error);
    assert!(text.contains("s3://runs/x/object") && !text.contains("not-the-secret"), "{text}");
    assert_eq!(server.requests().len(), 1, "a refusal is not tried again");
}

#[test]
fn missing_permission_and_expired_credentials_are_reported() {
    let (_folder, server) = server();
    let store = server.store("x");
    for (status, code) in [(403, "AccessDenied"), (400, "ExpiredToken")] {
        server.fail(refuse(status, code));
        let error = store.put("object", Bytes::from_static(b"x")).unwrap_err();
        assert!(matches!(error, Error::Denied { .. }) && shown(&error).contains(code), "{}", shown(&error));
        assert!(!shown(&error).contains(SECRET_KEY));
    }
}

/// The response to a deletion of several objects has status 200, and an error for each object that stays.
#[test]
fn a_denied_deletion_is_not_retried() {
    let (_folder, server) = server();
    let store = server.store("x");
    store.put("object", Bytes::from_static(b"x")).unwrap();
    let body = "<?xml version=\"1.0\"?><DeleteResult><Error><Key>x/object</Key><Code>AccessDenied</Code>\
                <Message>Access Denied</Message></Error></DeleteResult>";
    let fault = Fault::Answer(body);
    server.fail(Rule { method: "POST".parse().unwrap(), contains: "delete", after: 0, times: usize::MAX, fault });
    server.requests();
    for error in [store.delete("object").unwrap_err(), store.delete_all(&["object".to_owned()]).unwrap_err()] {
        assert!(matches!(error, Error::Denied { .. }) && shown(&error).contains("x/object"), "{}", shown(&error));
    }
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_store_without_create_only_writes_is_reported() {
    let (_folder, server) = server();
    let run = server.store("x");
    server.fail(Rule { times: usize::MAX, ..refuse(501, "NotImplemented") });
    let error = Lease::take(&run).unwrap_err();
    assert!(matches!(error, Error::NoCreateOnly { .. }), "{error:?}");
    assert!(shown(&error).contains("If-None-Match") && shown(&error).contains("lease-000001"), "{}", shown(&error));
    let error = run.put("object", Bytes::new()).unwrap_err();
    assert!(matches!(error, Error::Failed { attempts: 1, .. }), "{error:?}");
}

#[test]
fn a_missing_bucket_is_reported() {
    let (_folder, server) = server();
    server.fail(refuse(404, "NoSuchBucket"));
    let error = server.store("x").put("object", Bytes::from_static(b"x")).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("s3://runs/x/object"), "{error}");
}

#[test]
fn an_unreachable_server_fails_after_the_total_timeout() {
    let retry_policy = RetryPolicy { total_timeout: std::time::Duration::from_millis(300), ..fast_retries() };
    let (folder, server) = server();
    let store = server.store_with("x", SECRET_KEY, retry_policy);
    drop((server, folder));
    let start = std::time::Instant::now();
    let error = store.get("object").unwrap_err();
    assert!(matches!(error, Error::Failed { attempts: 2.., .. }), "{error:?}");
    assert!(start.elapsed() < std::time::Duration::from_secs(3));
}
