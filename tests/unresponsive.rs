//! Parts of the coordinator that block or fail: its output, a write to the store, and one of its threads.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::preload::{BlockingFsync, FailingThreads};
use crate::support::{self, Running, TestDir, lambert, wait_for_no_workers};

/// A number of steps that no run completes before its test ends it.
const ENDLESS: u64 = 1_000_000;

/// Creates a pipe with room for only a few records.
fn small_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    (reader, writer)
}

/// Returns the status of the run at `run`, or null if there is none.
fn status(run: &str) -> Value {
    let text = std::fs::read(Path::new(run).join("status.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits at most `limit` for the end of a coordinator. Returns its exit code.
fn code(coordinator: &mut Child, limit: Duration) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = coordinator.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    panic!("the coordinator has not ended within {limit:?}");
}

/// Starts a run whose output is not read. Returns its coordinator and the read ends of its standard output and its
/// standard error.
fn unread(dir: &TestDir, run: &str) -> (Child, PipeReader, PipeReader) {
    let (output, error) = (small_pipe(), small_pipe());
    let mut command = Command::new(lambert());
    command.args(["run", "--config", &dir.config(ENDLESS, 1), "--run", run, "--json"]);
    let coordinator = command.env("RUST_LOG", "debug").stdout(output.1).stderr(error.1).spawn().unwrap();
    (coordinator, output.0, error.0)
}

#[test]
fn a_stalled_reader_does_not_block_the_run() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let (mut coordinator, output, error) = unread(&dir, &run);
    wait_until("the status has stopped at a step of which the output has no room", || {
        status(&run)["step"].as_u64() > Some(100)
    });
    // Once the pipes are read again, the output must be complete and in order.
    let log = std::thread::spawn(move || std::io::read_to_string(error).unwrap());
    let lines = std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).collect::<Vec<_>>());
    support::done(&["stop", &run]);
    assert_eq!(code(&mut coordinator, Duration::from_secs(30)), Some(76));
    let lines: Vec<Value> = lines.join().unwrap().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u64> =
        lines.iter().filter(|line| line.get("event").is_none()).map(|line| line["step"].as_u64().unwrap()).collect();
    assert!(steps.len() > 100 && steps.iter().enumerate().all(|(index, step)| *step == index as u64 + 1), "{steps:?}");
    assert_eq!(lines.last().unwrap()["event"], "end");
    let log = log.join().unwrap();
    assert!(log.contains("stopped: step") && !log.contains("dropped"), "{log}");
}

#[test]
fn a_reader_that_never_continues_does_not_keep_the_process() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let (mut coordinator, _output, _error) = unread(&dir, &run);
    wait_until("the status has stopped at a step of which the output has no room", || {
        status(&run)["step"].as_u64() > Some(50)
    });
    support::signal(coordinator.id(), "-TERM");
    assert_eq!(code(&mut coordinator, Duration::from_secs(30)), Some(75));
    assert_eq!(status(&run)["state"], "stopped");
    assert!(support::workers(&run).is_empty());
}

/// The file server is unavailable at the end of a run. The coordinator must still print the result and exit with its
/// exit code.
#[test]
fn a_blocked_status_write_does_not_keep_the_process() {
    let dir = TestDir::new();
    let (run, fsync) = (dir.path("run"), BlockingFsync::new(&dir));
    let mut running = Running::start_in(&dir.config(40, 1), &run, &[], &fsync.environment);
    running.reach(5);
    fsync.block("status.json");
    let start = Instant::now();
    let ended = running.end();
    eprintln!("from the blocked write to the end: {:.1} s", start.elapsed().as_secs_f64());
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(ended.log.contains("finished: step 40 of 40"), "{}", ended.log);
    assert!(ended.log.contains(&format!("cannot write {run}/status.json within 20 s")), "{}", ended.log);
    assert!(start.elapsed() < Duration::from_secs(60), "{}", ended.log);
}

/// The thread that polls for requests panics, because the system does not let the store start a new thread.
#[test]
fn a_panic_on_another_thread_ends_the_run_with_one_line() {
    let dir = TestDir::new();
    let (run, fsync, threads) = (dir.path("run"), BlockingFsync::new(&dir), FailingThreads::new(&dir));
    let preload = format!("{}:{}", fsync.environment[0].1, threads.environment[0].1);
    let environment = [("LD_PRELOAD", preload), fsync.environment[1].clone(), threads.environment[1].clone()];
    let mut running = Running::start_in(&dir.config(ENDLESS, 1), &run, &[], &environment);
    running.reach(5);
    // One thread of the store blocks here, so the next request needs another thread.
    fsync.block("status.json");
    std::thread::sleep(Duration::from_secs(4));
    threads.fail();
    // Idle threads of the store exit after ten seconds. While the coordinator is stopped, no request uses these
    // threads.
    for _ in 0..5 {
        if support::workers(&run).is_empty() {
            break;
        }
        running.kill_coordinator("-STOP");
        std::thread::sleep(Duration::from_secs(11));
        running.kill_coordinator("-CONT");
        std::thread::sleep(Duration::from_secs(4));
    }
    wait_for_no_workers(&run);
    fsync.release();
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    let last: Vec<&str> = ended.log.lines().filter(|line| line.contains("internal error in thread")).collect();
    assert_eq!(last.len(), 1, "{}", ended.log);
    assert!(last[0].starts_with("lambert: error: ") && last[0].contains("please report"), "{}", ended.log);
    assert!(!ended.log.contains("panicked at") && !ended.log.contains("RUST_BACKTRACE"), "{}", ended.log);
    // The writer of the status may have needed the missing thread, too. Then the status is that of the last write.
    let state = status(&run)["state"].clone();
    assert!(state == "failed" || state == "training", "{state}: {}", ended.log);
}
