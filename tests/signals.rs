//! Signals from `timeout`, systemd and the kernel, sent to all processes at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::progress::has_terminals;
use crate::support::preload::BlockingFsync;
use crate::support::{Running, TestDir, checkpoints, lambert, wait_for_no_workers, workers};

/// A number of steps that no run completes before its test ends it.
const ENDLESS: u64 = 1_000_000;

/// Returns a process and all its descendants.
fn process_tree(pid: u32) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The process name, which is in parentheses, may contain any character.
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

/// Sends SIGTERM to every process. systemd does this to stop a service with KillMode=control-group.
#[test]
fn sigterm_to_every_process_saves_a_checkpoint_and_stops() {
    let dir = TestDir::new();
    let slow = BlockingFsync::new(&dir);
    for (ranks, backend) in [(2, "mpi"), (1, "local")] {
        let run = dir.path(&format!("run-{ranks}"));
        let sets = ["--set", &format!("cluster.all_reduce.backend={backend}"), "--set", "checkpoint.every_steps=0"];
        let mut running = Running::start_in(&dir.config(ENDLESS, ranks), &run, &sets, &slow.environment);
        running.reach(3);
        // If mpirun reacted to the signal, it would end its ranks before this slow save is complete.
        slow.block("optimizer-00000");
        let all: Vec<String> = process_tree(running.pid()).iter().map(u32::to_string).collect();
        assert!(all.len() > 2 * ranks, "expected coordinator, ranks and output writers: {all:?}");
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

/// `timeout` sends a signal to its child and to the process group of both. The two signals must count as one request.
/// (The kernel may merge them, so the test first sends two signals itself, with a pause.)
#[test]
fn the_two_signals_of_timeout_are_one_request() {
    let dir = TestDir::new();
    let (run, sets) =
        (dir.path("run"), ["--set", "cluster.all_reduce.backend=local", "--set", "checkpoint.every_steps=0"]);
    let mut running = Running::start_with(&dir.config(ENDLESS, 1), &run, &sets);
    running.reach(3);
    running.kill_coordinator("-TERM");
    std::thread::sleep(Duration::from_millis(100));
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert_eq!(checkpoints(&run).len(), 1, "{}", ended.log);
    let stops = std::env::var("LAMBERT_TEST_STOPS").map_or(1, |stops| stops.parse().unwrap());
    for number in 0..stops {
        let run = dir.path(&format!("run-{number}"));
        let mut command = Command::new("timeout");
        command.args(["--preserve-status", "-s", "TERM", "5"]).arg(lambert());
        let ended = Running::start_by(command, &dir.config(ENDLESS, 1), &run, &sets).end();
        assert_eq!(ended.code, Some(75), "stop {number}: {}", ended.log);
        assert_eq!(checkpoints(&run).len(), 1, "stop {number}: {}", ended.log);
    }
}

/// A closed terminal sends SIGHUP, and every later write to it fails. A run that ignores SIGHUP trains on.
#[test]
fn a_closed_terminal_stops_a_run_with_a_checkpoint() {
    if !has_terminals() {
        return;
    }
    let dir = TestDir::new();
    for (signal, steps, code) in [(":", ENDLESS, "75"), ("", 1000, "0")] {
        let (run, ended) = (dir.path(&format!("run-{steps}")), dir.path(&format!("code-{steps}")));
        let line = format!(
            "trap '{signal}' HUP; {} run --config {} --run {run} --set cluster.all_reduce.backend=local --set \
             checkpoint.every_steps=0; echo $? > {ended}",
            lambert().display(),
            dir.config(steps, 1)
        );
        // The kernel sends SIGHUP to the shell that the terminal belongs to. When this shell ends, it sends it to the others.
        let line = format!("sh -c \"{}\"; true", line.replace('$', "\\$"));
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--flush", "--command", &line, "/dev/null"]).stdin(Stdio::piped());
        let mut terminal = terminal.stdout(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        let wait = |holds: &dyn Fn() -> bool, what: &str| {
            while !holds() {
                assert!(begin.elapsed() < Duration::from_secs(120), "{what} is missing");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let step = || {
            let text = std::fs::read_to_string(Path::new(&run).join("status.json")).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            status["step"].as_u64().unwrap_or(0)
        };
        wait(&|| step() > 0, "the first step");
        terminal.kill().unwrap();
        terminal.wait().unwrap();
        let read = || std::fs::read_to_string(&ended).unwrap_or_default();
        wait(&|| read().ends_with('\n'), "the exit code");
        assert_eq!((read().trim(), checkpoints(&run).len()), (code, 1));
        wait_for_no_workers(&run);
    }
}
