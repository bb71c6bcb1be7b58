//! Failures at chosen times: kills inside single requests of a save or a load, and a wall clock that jumps. Also checks
//! that no file or log contains a credential.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Fault, RandomFaults, Rule, SECRET_KEY, Server};
use crate::support::preload::library;
use crate::support::{self, Running, TestDir, assert_same_bits, checkpoints, run_in, signal, tree, workers};

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Request to stall: method, part of the path, number of matching requests that pass first.
type StalledRequest = (&'static str, &'static str, usize);

/// Requests that are stalled one after the other. Rank 0 reads each object once to verify it. Then one rank
/// reads the object for all ranks.
const STALLED_REQUESTS: [StalledRequest; 7] = [
    ("PUT", "/model.safetensors", 0),
    ("GET", "/manifest.json", 0),
    ("GET", "/model.safetensors", 0),
    ("GET", "/model.safetensors", 1),
    ("GET", "/optimizer-00001", 1),
    ("PUT", "/optimizer-00001", 0),
    ("PUT", "/manifest.json", 0),
];

fn stall(server: &Server, (method, contains, after): StalledRequest) {
    let fault = Fault::Stall(Duration::from_secs(30));
    server.fail(Rule { method: method.parse().unwrap(), contains, after, times: 1, fault });
}

/// Each kill falls inside one stalled request.
#[test]
fn kills_inside_a_save_or_a_load_leave_the_result_unchanged() {
    let dir = TestDir::new();
    let (config, reference) = (dir.config(150, 2), dir.path("undisturbed"));
    assert_eq!(Running::start(&config, &reference).end().code, Some(0));
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let url = format!("s3://{BUCKET}/killed");
    let mut running = Running::start_in(&config, &url, &["--set", "cluster.restart.limit=100"], &server.environment());
    // The first request is stalled only after a checkpoint has been saved. Each later request belongs to the attempt
    // that follows a kill.
    running.reach(15);
    stall(&server, STALLED_REQUESTS[0]);
    for (i, aim) in STALLED_REQUESTS.iter().enumerate() {
        wait_until(&format!("no request like {aim:?}"), || server.hits() > 0);
        server.clear();
        let victims = workers(&url);
        let next = STALLED_REQUESTS.get(i + 1);
        next.filter(|aim| aim.0 == "GET").iter().for_each(|aim| stall(&server, **aim));
        // Kills rank 0, rank 1 and all ranks in turn. The coordinator ends the ranks that are not killed.
        victims.iter().filter(|(rank, _)| i % 3 == 2 || **rank == i % 3).for_each(|(_, pid)| signal(*pid, "-9"));
        let is_new = || workers(&url).values().any(|pid| !victims.values().any(|victim| victim == pid));
        wait_until("no new workers", is_new);
        next.filter(|aim| aim.0 == "PUT").iter().for_each(|aim| stall(&server, **aim));
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.log.matches("killed by SIGKILL").count(), STALLED_REQUESTS.len(), "{}", ended.log);
    let local = dir.path("copy");
    support::copy(&Path::new(&dir.path("s3")).join(BUCKET).join("killed"), Path::new(&local));
    assert_same_bits(&reference, &local);
}

/// Intervals, leases and the order of checkpoints do not depend on the wall clock.
#[test]
fn a_jumping_clock_has_no_effect() {
    let dir = TestDir::new();
    let clock = [library(&dir, "jumping_clock")];
    let years: BTreeSet<_> = (0..12).map(|_| year(&clock)).collect();
    assert!(years.len() > 2, "the clock does not jump: {years:?}");
    let (config, reference) = (dir.config(200, 2), dir.path("undisturbed"));
    let by_minutes = |minutes: &str| format!("checkpoint.every_minutes={minutes}");
    let never = by_minutes("5");
    let ended =
        Running::start_in(&config, &reference, &["--set", "checkpoint.every_steps=0", "--set", &never], &clock).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(
        ended.log.matches("saved checkpoint").count(),
        1,
        "more than the final checkpoint was saved: {}",
        ended.log
    );

    let (often, run) = (by_minutes("0.005"), dir.path("killed"));
    let mut running = Running::start_in(&config, &run, &["--set", "checkpoint.every_steps=0", "--set", &often], &clock);
    for attempt in ["-a0001", "-a0002"] {
        let saved =
            || running.record().is_none() || checkpoints(&run).first().is_some_and(|name| name.ends_with(attempt));
        wait_until("no checkpoint by the clock", saved);
        running.kill_rank(1, "-9");
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.log.matches("resuming from").count(), 2, "{}", ended.log);
    assert_same_bits(&reference, &run);
}

/// Returns the current year as a program under this clock sees it.
fn year(clock: &[(&'static str, String)]) -> String {
    std::thread::sleep(Duration::from_millis(130));
    let year = Command::new("date").arg("+%Y").envs(clock.iter().map(|(name, value)| (name, value))).output().unwrap();
    String::from_utf8(year.stdout).unwrap()
}

/// Checks the log (at the most detailed level) and all files of a run with store faults.
#[test]
fn no_credential_is_logged_or_written() {
    let dir = TestDir::new();
    let folder = PathBuf::from(dir.path("s3"));
    let server = Server::start(&folder, 0);
    let mut environment = server.environment();
    environment.push(("RUST_LOG", "trace".to_owned()));
    let faults = vec![Fault::Refuse(403, "SignatureDoesNotMatch"), Fault::Refuse(503, "SlowDown"), Fault::CutBody];
    let url = format!("s3://{BUCKET}/run");
    let mut running = Running::start_in(&dir.config(100, 2), &url, &[], &environment);
    running.reach(8);
    server.random_faults(Some(RandomFaults { per_mille: 100, faults, seed: 3 }));
    running.reach(90);
    assert!(server.clear() > 0, "no fault was hit");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let wrong: Vec<_> =
        environment.iter().map(|(name, value)| (*name, value.replace("verysecret", "otherwords"))).collect();
    let denied = run_in(&["checkpoint", "list", &url], &wrong);
    assert!(denied.code != 0 && denied.err.contains("access denied"), "{}", denied.err);
    for log in [&ended.log, &denied.err] {
        assert!(!log.contains(SECRET_KEY) && !log.contains("otherwords"), "{log}");
    }
    assert!(ended.log.contains("TRACE") || ended.log.contains("DEBUG"), "the log is not detailed: {}", ended.log);
    let written = tree(&folder);
    assert!(written.len() > 5, "{:?}", written.keys());
    for (name, bytes) in written {
        let found = bytes.windows(SECRET_KEY.len()).any(|part| part == SECRET_KEY.as_bytes());
        assert!(!found, "{} holds the secret", name.display());
    }
}
