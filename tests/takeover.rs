//! Coordinators and the lease of a run: a takeover, a lost response, and a store that grants no lease.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Fault, Rule, Server};
use crate::support::{ENDLESS, Running, TestDir, read_json, seconds, signal, workers};

/// Another coordinator takes over the run, and then the workers of the first coordinator fail. The first coordinator
/// must exit and must not take the run back.
#[test]
fn a_replaced_coordinator_does_not_take_the_run_back() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(ENDLESS, 2), dir.path("run"));
    let mut first = Running::start(&config, &run);
    first.reach(3);
    first.kill_coordinator("-STOP");
    let pid = first.pid();
    let mut second = Running::start(&config, &run);
    second.reach(3);
    let start = Instant::now();
    first.kill_coordinator("-CONT");
    let ended = first.end();
    seconds("from its return to its end", start);
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    let warning = "taking over the run from another coordinator";
    assert!(!ended.log.contains(warning), "{}", ended.log);
    assert!(ended.log.contains("another coordinator has taken over the run"), "{}", ended.log);
    second.reach_now(20);
    second.kill_coordinator("-TERM");
    let ended = second.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(!ended.log.contains("restarting all workers"), "the successor's workers were restarted: {}", ended.log);
    assert!(ended.log.contains(&format!("{warning} (pid {pid}, host ")), "{}", ended.log);
    // A coordinator that has ended is no other coordinator.
    let mut third = Running::start(&config, &run);
    third.reach_now(22);
    third.kill_coordinator("-TERM");
    let log = third.end().log;
    assert!(!log.contains(warning), "{log}");
    assert_eq!(read_json(&run, "status.json")["attempt"], 3);
}

/// The response to the creation of a lease is lost repeatedly, while the poller already sees the new lease.
#[test]
fn a_lost_response_to_a_lease_is_not_a_takeover() {
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let mut running = Running::start_in(&dir.config(100, 2), &url, &[], &server.environment());
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

/// A coordinator that waits for a lease must react to signals.
#[test]
fn a_signal_ends_a_coordinator_that_waits_for_a_lease() {
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let fault = Fault::Refuse(503, "SlowDown");
    server.fail(Rule { method: "PUT".parse().unwrap(), contains: "lease-", after: 0, times: 100_000, fault });
    let running = Running::start_in(&dir.config(ENDLESS, 2), &url, &[], &server.environment());
    let start = Instant::now();
    while server.hits() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "no lease was requested");
        std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    running.kill_coordinator("-TERM");
    let ended = running.end();
    let took = seconds("from SIGTERM to the end, without a lease", start);
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    // Store requests have a timeout of three minutes.
    assert!(took < 60.0, "{}", ended.log);
}

/// A coordinator is suspended with its ranks, and another one trains the run to its end. When the first one resumes, it
/// must leave the objects of its successor as they are.
#[test]
fn a_resumed_coordinator_keeps_the_status_of_its_successor() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(500, 2), dir.path("run"));
    let mut first = Running::start(&config, &run);
    first.reach(3);
    let ranks = workers(&run);
    // A coordinator that is suspended during a write completes it when it resumes. The status is written every three
    // seconds, so the coordinator is suspended just after a write.
    let modified = || std::fs::metadata(Path::new(&run).join("status.json")).unwrap().modified().unwrap();
    let last = modified();
    first.wait_until(|| modified() != last);
    first.kill_coordinator("-STOP");
    ranks.values().for_each(|rank| signal(*rank, "-STOP"));
    let second = Running::start(&config, &run).end();
    assert_eq!(second.code, Some(0), "{}", second.log);
    let objects = || ["status.json", "coordinator.json"].map(|name| std::fs::read(Path::new(&run).join(name)).unwrap());
    let before = objects();
    first.kill_coordinator("-CONT");
    ranks.values().for_each(|rank| signal(*rank, "-CONT"));
    let ended = first.end();
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    assert!(objects() == before, "the status is now {}", read_json(&run, "status.json"));
    assert_eq!(read_json(&run, "status.json")["state"], "finished");
}
