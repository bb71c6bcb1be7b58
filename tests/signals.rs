//! Signals as they come from `timeout`, from systemd and from the kernel: to all processes at once.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::support::preload::BlockingFsync;
use crate::support::{Place, Running, checkpoints, lambert, workers};

/// More steps than any run here makes before it is ended.
const ENDLESS: u64 = 1_000_000;

/// A process and all that descend from it.
fn family(pid: u32) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything.
        let Some((pid, rest)) = stat.split_once(' ').zip(stat.rsplit_once(')')).map(|(head, tail)| (head.0, tail.1))
        else {
            continue;
        };
        parents.insert(pid.parse::<u32>().unwrap(), rest.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap());
    }
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, above)| **above == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// As systemd stops a service whose KillMode is control-group.
#[test]
fn sigterm_to_every_process_is_a_stop_with_a_checkpoint() {
    let place = Place::new();
    let slow = BlockingFsync::new(&place);
    for (ranks, backend) in [(2, "mpi"), (1, "local")] {
        let run = place.path(&format!("run-{ranks}"));
        let sets = ["--set", &format!("cluster.all_reduce.backend={backend}"), "--set", "checkpoint.every_steps=0"];
        let mut running = Running::start_in(&place.config(ENDLESS, ranks), &run, &sets, &slow.environment);
        running.reach(3);
        // A launcher that ends its ranks does so before a save of some seconds has ended.
        slow.block("optimizer-00000");
        let all: Vec<String> = family(running.pid()).iter().map(u32::to_string).collect();
        assert!(all.len() > 2 * ranks, "the coordinator, the ranks and what keeps their output: {all:?}");
        let _ = Command::new("kill").arg("-TERM").args(&all).status().unwrap();
        std::thread::sleep(Duration::from_secs(4));
        slow.release();
        let ended = running.end();
        assert_eq!(ended.code, Some(75), "{ranks} rank(s): {}", ended.log);
        assert!(ended.log.contains("stopped: step"), "{ranks} rank(s): {}", ended.log);
        assert_eq!(checkpoints(&run).len(), 1, "{ranks} rank(s): {}", ended.log);
        assert!(workers(&run).is_empty());
    }
}

/// `timeout` signals the program that it has started, and the group of both: that is one request. (The second one may come before
/// the first is taken, and then is none: so first two that are.)
#[test]
fn the_two_signals_of_timeout_are_one_request() {
    let place = Place::new();
    let (run, sets) =
        (place.path("run"), ["--set", "cluster.all_reduce.backend=local", "--set", "checkpoint.every_steps=0"]);
    let mut running = Running::start_with(&place.config(ENDLESS, 1), &run, &sets);
    running.reach(3);
    running.kill_coordinator("-TERM");
    std::thread::sleep(Duration::from_millis(100));
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert_eq!(checkpoints(&run).len(), 1, "{}", ended.log);
    let stops = std::env::var("LAMBERT_TEST_STOPS").map_or(1, |stops| stops.parse().unwrap());
    for number in 0..stops {
        let run = place.path(&format!("run-{number}"));
        let mut command = Command::new("timeout");
        command.args(["--preserve-status", "-s", "TERM", "5"]).arg(lambert());
        let ended = Running::start_by(command, &place.config(ENDLESS, 1), &run, &sets).end();
        assert_eq!(ended.code, Some(75), "stop {number}: {}", ended.log);
        assert_eq!(checkpoints(&run).len(), 1, "stop {number}: {}", ended.log);
    }
}
