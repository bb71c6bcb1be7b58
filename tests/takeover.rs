//! Coordinators and the lease of a run: another one takes it over, its answer is lost, the store gives none.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Fault, Rule, Server};
use crate::support::{ENDLESS, Place, Running, read_json, seconds};

/// One coordinator loses its workers while another has begun: it leaves, and takes the run from nobody.
#[test]
fn one_that_comes_back_leaves_the_run_to_its_successor() {
    let place = Place::new();
    let (config, run) = (place.config(ENDLESS, 2), place.path("run"));
    let mut first = Running::start(&config, &run);
    first.reach(3);
    first.kill_coordinator("-STOP");
    let mut second = Running::start(&config, &run);
    second.reach(3);
    let start = Instant::now();
    first.kill_coordinator("-CONT");
    let ended = first.end();
    seconds("from its return to its end", start);
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    assert!(ended.log.contains("another coordinator has taken over the run"), "{}", ended.log);
    second.reach_now(20);
    second.kill_coordinator("-TERM");
    let ended = second.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(!ended.log.contains("started again"), "the successor was disturbed: {}", ended.log);
    assert_eq!(read_json(&run, "status.json")["attempt"], 2);
}

/// The answer to the creation of a lease is lost, again and again, while the poller sees the lease.
#[test]
fn a_lost_answer_to_a_lease_is_no_eviction() {
    let place = Place::new();
    let server = Server::start(Path::new(&place.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let mut running = Running::start_in(&place.config(100, 2), &url, &[], &server.environment());
    running.reach(10);
    let fault = Fault::LoseAnswer;
    server.fail(Rule { method: "PUT".parse().unwrap(), contains: "lease-000002", after: 0, times: 6, fault });
    let start = Instant::now();
    running.kill_rank(0, "-9");
    let ended = running.end();
    seconds("to the end", start);
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(server.hits() >= 6, "{}", server.hits());
    assert!(ended.log.contains("attempt 2: starting") && !ended.log.contains("attempt 3"), "{}", ended.log);
}

/// Whoever waits for a lease hears a signal.
#[test]
fn a_signal_is_heeded_while_a_lease_is_awaited() {
    let place = Place::new();
    let server = Server::start(Path::new(&place.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let fault = Fault::Refuse(503, "SlowDown");
    server.fail(Rule { method: "PUT".parse().unwrap(), contains: "lease-", after: 0, times: 100_000, fault });
    let running = Running::start_in(&place.config(ENDLESS, 2), &url, &[], &server.environment());
    let start = Instant::now();
    while server.hits() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody wants a lease");
        std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    running.kill_coordinator("-TERM");
    let ended = running.end();
    let took = seconds("from SIGTERM to the end, without a lease", start);
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    // The store is given three minutes.
    assert!(took < 60.0, "{}", ended.log);
}
