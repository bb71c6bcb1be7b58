//! Tests of runs with many records. Operations must not read records that they do not need.

use std::path::Path;
use std::time::Instant;

use crate::common::{folder_store, save};
use crate::s3_server::Server;
use lambert_store::checkpoint::{self, Retention};
use lambert_store::{Lease, Store, run};

/// Writes a record without fsync.
fn write_record(folder: &Path, object: &str, text: &str) {
    let path = folder.join(object);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// For each of `rollbacks` attempts, writes a lease and the record of a rollback to step 0. Distributes `metrics`
/// objects with step records over these attempts.
fn write_records(folder: &Path, rollbacks: u32, metrics: u32) {
    for attempt in 1..=rollbacks {
        let record =
            format!(r#"{{"attempt": {attempt}, "steps": 0, "dataset": "d", "samples": {{}}, "why": "a test"}}"#);
        write_record(folder, &run::rollback(attempt), &record);
        write_record(folder, &run::lease(attempt), "{}");
    }
    (0..metrics)
        .for_each(|number| write_record(folder, &run::records(1 + number % rollbacks.max(1), number.into()), "{}\n"));
}

/// Counts the requests of `work` that contain `what`.
fn requests(server: &Server, what: &str, work: impl FnOnce()) -> usize {
    server.requests();
    work();
    server.requests().iter().filter(|request| request.contains(what)).count()
}

#[test]
fn a_rollback_from_before_the_oldest_checkpoint_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), 0);
    write_records(&folder.path().join(crate::s3_server::BUCKET).join("old"), 50, 200);
    let store = server.store("old");
    let lease = Lease::take(&store).unwrap();
    assert_eq!(lease.attempt(), 51);
    [10, 20, 30].iter().for_each(|step| drop(save(&store, &lease, *step)));
    // This record invalidates the last checkpoint.
    let record = r#"{"attempt": 51, "steps": 20, "dataset": "d", "samples": {}, "why": "a test"}"#;
    store.put(&run::rollback(51), record.into()).unwrap();
    let newest = || checkpoint::newest_verified(&store).unwrap().0.unwrap().0;
    assert_eq!(requests(&server, "rollbacks/attempt", || assert_eq!(newest(), "step-000000020-a0051")), 1);
    let retention = Retention { last: 1, ..Retention::default() };
    let removed = || checkpoint::retain_under(&lease, &store, &retention).unwrap().checkpoints;
    assert_eq!(requests(&server, "rollbacks/attempt", || assert_eq!(removed().len(), 2)), 1);
    let both = || drop((newest(), checkpoint::list(&store).unwrap(), removed(), checkpoint::prune(&store, 1).unwrap()));
    assert_eq!(requests(&server, "metrics", both), 0);
}

/// Measures operations in a run that has `rollbacks` rollback records and `metrics` objects with step records. They are
/// the operations that a start, a save or a user requires. Returns their durations in seconds.
fn measure(rollbacks: u32, metrics: u32) -> Vec<(&'static str, f64)> {
    let (_folder, store) = folder_store();
    write_records(Path::new(store.url()), rollbacks, metrics);
    let mut measured = Vec::new();
    let mut time = |what: &'static str, work: &dyn Fn(&Store)| {
        let start = Instant::now();
        work(&store);
        measured.push((what, start.elapsed().as_secs_f64()));
        eprintln!(
            "{rollbacks} rollbacks, {metrics} objects of metrics: {what}: {:.3} s",
            start.elapsed().as_secs_f64()
        );
    };
    let lease = Lease::take(&store).unwrap();
    [10, 20, 30, 40].iter().for_each(|step| drop(save(&store, &lease, *step)));
    let retention = Retention { last: 2, ..Retention::default() };
    time("list", &|run| assert_eq!(checkpoint::list(run).unwrap().len(), 4));
    time("newest that verifies", &|run| assert!(checkpoint::newest_verified(run).unwrap().0.is_some()));
    time("prune in training", &|run| {
        assert_eq!(checkpoint::retain_under(&lease, run, &retention).unwrap().checkpoints.len(), 2);
    });
    time("prune by hand", &|run| assert_eq!(checkpoint::prune(run, 1).unwrap().checkpoints.len(), 1));
    time("check of the lease", &|_| lease.check().unwrap());
    time("next lease", &|run| assert_eq!(Lease::take(run).unwrap().attempt(), rollbacks + 2));
    measured
}

#[test]
fn many_records_cost_little() {
    for (what, seconds) in measure(1_000, 10_000) {
        assert!(seconds < 2.0, "{what} took {seconds:.1} s");
    }
}

#[test]
#[ignore = "makes 120,000 files; CONTRIBUTING.md has the command"]
fn very_many_records_cost_little() {
    for (what, seconds) in measure(10_000, 100_000) {
        assert!(seconds < 5.0, "{what} took {seconds:.1} s");
    }
}
