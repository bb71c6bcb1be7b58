//! The coordinator with the real programs: signals, checkpoint requests, hanging processes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::preload::library;
use crate::support::{
    self, ENDLESS, Ended, Running, TestDir, assert_same_bits, checkpoints, lambert, read_json, seconds,
    wait_for_no_workers, with_worker, workers,
};

/// Asserts that a run has stopped with this exit code, and that none of its workers is left.
fn stopped(run: &str, ended: &Ended, code: i32, word: &str) {
    assert_eq!(ended.code, Some(code), "{}", ended.log);
    assert!(ended.log.contains(word), "no {word:?} in {}", ended.log);
    assert!(workers(run).is_empty());
}

#[test]
fn sighup_and_sigusr1_save_a_checkpoint_and_stop() {
    let dir = TestDir::new();
    for (number, signal) in ["-HUP", "-USR1"].into_iter().enumerate() {
        let run = dir.path(&format!("run-{number}"));
        // The test runner may ignore SIGHUP, and child processes inherit this.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(lambert());
        let mut running = Running::start_by(command, &dir.config(ENDLESS, 2), &run, &[]);
        running.reach(3);
        let start = Instant::now();
        running.kill_coordinator(signal);
        let ended = running.end();
        seconds(signal, start);
        stopped(&run, &ended, 75, "stopped: step");
        // There is more than one checkpoint if the run had reached a multiple of the interval.
        assert!(!checkpoints(&run).is_empty(), "{}", ended.log);
        assert_eq!(read_json(&run, "status.json")["state"], "stopped");
    }
}

/// If the terminal is closed after Ctrl-C, the checkpoint must still be saved. The shell and the kernel may both send
/// SIGHUP then.
#[test]
fn sighup_after_sigint_does_not_cancel_the_checkpoint() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(lambert());
    let slow = slow_reads(&dir);
    let mut running = Running::start_by(command, &dir.config(ENDLESS, 2), &run, &[]);
    running.reach(3);
    running.kill_coordinator("-INT");
    running.kill_coordinator("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    running.kill_coordinator("-HUP");
    stopped(&run, &running.end(), 76, "stopped: step");
    // Even before the ranks have reported, the status contains the step and the checkpoint of the run.
    let newest = checkpoints(&run).remove(0);
    let running = Running::start_in(&dir.config(ENDLESS, 2), &run, &[], &[slow.preload, slow.trigger]);
    until(&run, "\"starting\"");
    running.kill_coordinator("-TERM");
    stopped(&run, &running.end(), 75, "no step completed since the start");
    let status = read_json(&run, "status.json");
    assert_eq!((status["checkpoint"].as_str(), status["state"].as_str()), (Some(&*newest), Some("stopped")));
    assert!(status["step"].as_u64() >= Some(3), "{status}");
}

/// The signal is sent twice, because `timeout` signals its child and then the whole process group. Before the first
/// step there is nothing to save.
#[test]
fn a_stop_before_the_first_step_ends_the_run_at_once() {
    let dir = TestDir::new();
    let (config, run, slow) = (dir.config(20, 2), dir.path("run"), slow_reads(&dir));
    let running = Running::start_in(&config, &run, &[], &[slow.preload, slow.trigger]);
    until(&run, "\"training\"");
    let start = Instant::now();
    (0..2).for_each(|_| running.kill_coordinator("-TERM"));
    let ended = running.end();
    let took = seconds("from SIGTERM in the first step to the end", start);
    stopped(&run, &ended, 75, "no checkpoint saved");
    assert!(took < 20.0, "{}", ended.log);
    assert_eq!(Running::start(&config, &run).end().code, Some(0), "the run does not start again");
}

/// Regression test: if a worker crashed after the end of training, the run was restarted five times and then failed.
#[test]
fn a_crash_after_the_end_does_not_change_the_result() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let ended = Running::start_in(&dir.config(20, 2), &run, &[], &[library(&dir, "abort_at_exit")]).end();
    stopped(&run, &ended, 0, "killed by SIGABRT; the last checkpoint is complete, so the result is valid");
    assert!(ended.log.contains("rank 1 (pid ") && !ended.log.contains("restarting all workers"), "{}", ended.log);
    assert_eq!(read_json(&run, "status.json")["state"], "finished");
}

/// After a reboot, or in another container, another process may have the same process ID.
#[test]
fn a_coordinator_is_identified_by_more_than_its_process_id() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut running = Running::start(&dir.config(ENDLESS, 1), &run);
    running.reach(3);
    assert!(support::done(&["status", &run]).contains("training, updated "));
    running.kill_coordinator("-KILL");
    drop(running);
    wait_for_no_workers(&run);
    let mut status = read_json(&run, "status.json");
    status["coordinator"]["pid"] = std::process::id().into();
    std::fs::write(Path::new(&run).join("status.json"), status.to_string()).unwrap();
    let text = support::done(&["status", &run]);
    assert!(text.contains("training, but its coordinator") && text.contains("is gone"), "{text}");
    let save = support::run(&["checkpoint", "save", &run]);
    assert_eq!(save.code, 1, "{}", save.err);
}

/// A shell may start processes and then replace itself by the coordinator, whose children they are then. Regression test:
/// the coordinator killed them after an attempt.
#[test]
fn children_from_before_the_coordinator_are_left_alone() {
    let dir = TestDir::new();
    let (run, pids) = (dir.path("run"), dir.path("pids"));
    // One of them is in the process group of the coordinator, one is not.
    let script = format!(
        "for start in '' setsid; do $start sleep 600 >{pids}.log 2>&1 & echo $! >>{pids}; done; sleep 1; exec \"$0\" \"$@\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(lambert());
    let mut running = Running::start_by(command, &dir.config(ENDLESS, 2), &run, &[]);
    running.reach(3);
    running.kill_rank(1, "-KILL");
    running.wait_until(|| Path::new(&run).join("lease-000002").exists());
    running.reach_now(3);
    let text = std::fs::read_to_string(&pids).unwrap();
    let children: Vec<u32> = text.lines().map(|pid| pid.parse().unwrap()).collect();
    let is_asleep = |pid: &u32| {
        // The command line of a zombie is empty.
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("sleep"))
    };
    let left = |when: &str| assert_eq!(children.iter().filter(|pid| is_asleep(pid)).count(), 2, "{when}");
    left("after a restart");
    running.kill_coordinator("-TERM");
    let ended = running.end();
    stopped(&run, &ended, 75, "killed by SIGKILL; restarting all workers");
    left("at the end");
    children.iter().for_each(|pid| support::signal(*pid, "-KILL"));
}

/// A run under nohup must outlive the terminal.
#[test]
fn an_ignored_sighup_stays_ignored() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let line = format!("trap '' HUP; exec {} run --config {} --run {run}", lambert().display(), dir.config(ENDLESS, 1));
    let mut coordinator = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).spawn().unwrap();
    let state = || std::fs::read_to_string(Path::new(&run).join("status.json")).unwrap_or_default();
    until(&run, "\"training\"");
    support::signal(coordinator.id(), "-HUP");
    std::thread::sleep(Duration::from_secs(2));
    assert!(state().contains("\"training\""), "{}", state());
    support::signal(coordinator.id(), "-TERM");
    assert_eq!(coordinator.wait().unwrap().code(), Some(75));
}

/// A parent that ignores SIGCHLD must not take the exit status of the workers from the coordinator.
#[test]
fn an_ignored_sigchld_hides_no_failure() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let line = format!("trap '' CHLD; exec {} run --config {} --run {run}", lambert().display(), dir.config(300, 2));
    let mut coordinator = Command::new("sh").args(["-c", &line]).stdout(Stdio::null()).spawn().unwrap();
    until(&run, "\"training\"");
    support::signal(workers(&run)[&1], "-KILL");
    assert_eq!(coordinator.wait().unwrap().code(), Some(0));
    assert_eq!(read_json(&run, "status.json")["attempt"], 2);
}

/// A stopped process sends no heartbeats. The coordinator ends the attempt after the timeout. The run must end with the
/// same bits as an undisturbed run. mpirun wakes the stopped process before it ends it, so enough steps must be left that
/// the attempt cannot complete them in this second.
#[test]
fn a_stopped_rank_is_detected_and_the_run_resumes() {
    let dir = TestDir::new();
    let (config, run, reference) = (dir.config(400, 2), dir.path("run"), dir.path("undisturbed"));
    let ended = Running::start(&config, &reference).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let mut running = Running::start_with(&config, &run, &["--set", "cluster.limits.silence_seconds=6"]);
    running.reach(3);
    let ranks = workers(&run);
    running.reach(10);
    let start = Instant::now();
    support::signal(ranks[&1], "-STOP");
    until(&run, "has sent no heartbeat for 6 s");
    seconds("from SIGSTOP to the detection, with a limit of 6 s", start);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(ended.log.contains("has sent no heartbeat for 6 s; restarting all workers"), "{}", ended.log);
    assert_same_bits(&reference, &run);
    let restarts = read_json(&run, "coordinator.json")["restarts"].to_string();
    assert!(restarts.contains("has sent no heartbeat for 6 s"), "{restarts}");
}

/// Waits until the run status contains `word`.
pub fn until(run: &str, word: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(Path::new(run).join("status.json")).unwrap_or_default().contains(word) {
        assert!(start.elapsed() < Duration::from_secs(120), "no {word:?} in the status of {run}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The status of a healthy run must contain the actual phase of each rank at every step.
#[test]
fn the_status_shows_no_save_without_a_save() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &run, &["--set", "checkpoint.every_steps=0"]);
    running.reach(5);
    let (mut seen, start) = (BTreeSet::new(), Instant::now());
    while seen.len() < 4 {
        assert!(start.elapsed() < Duration::from_secs(120), "the status was written {} times", seen.len());
        running.reach_now(10);
        let status = read_json(&run, "status.json");
        let ranks = status["ranks"].as_array().unwrap();
        assert!(ranks.iter().all(|rank| rank["phase"] != "saving a checkpoint"), "{status}");
        seen.extend((ranks.len() == 2).then(|| status["updated"].to_string()));
    }
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
}

/// All ranks report but make no progress. This is a hang, not a lost heartbeat.
#[test]
fn a_hanging_reader_is_detected_and_named() {
    let dir = TestDir::new();
    let (run, slow) = (dir.path("run"), slow_reads(&dir));
    let sets = ["--set", "cluster.limits.first_step_seconds=6"];
    let mut running = Running::start_in(&dir.config(ENDLESS, 2), &run, &sets, &[slow.preload, slow.trigger]);
    until(&run, "\"training\"");
    let start = Instant::now();
    until(&run, " hangs: ");
    seconds("a reader that hangs, noticed with a limit of 6 s", start);
    std::fs::remove_file(&slow.file).unwrap();
    running.reach(5);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains(" hangs: waiting for samples (step 1) for 6 s; the limit is 6 s"), "{}", ended.log);
    assert!(ended.log.contains(" is slow: waiting for samples"), "no warning before the timeout: {}", ended.log);
}

struct SlowReads {
    preload: (&'static str, String),
    trigger: (&'static str, String),
    file: PathBuf,
}

/// Prepares a library that makes reads of shards hang while a file exists.
fn slow_reads(dir: &TestDir) -> SlowReads {
    let file = PathBuf::from(dir.file("hang", "until it is gone"));
    let trigger = ("LAMBERT_TEST_HANG", file.to_str().unwrap().to_owned());
    SlowReads { preload: library(dir, "hanging_reads"), trigger, file }
}

/// A process in uninterruptible sleep cannot be killed. The coordinator reports it after a timeout and exits without
/// waiting for it any longer.
#[test]
fn an_unkillable_process_is_reported_and_left() {
    let dir = TestDir::new();
    let Some(frozen) = Frozen::new(&dir) else { return };
    let script = format!("echo gone > {}/file", frozen.folder);
    let program = with_worker(&dir, &script);
    let arguments = ["run", "--config", &dir.config(ENDLESS, 1), "--run", &dir.path("run")];
    let coordinator = Command::new(program).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let start = Instant::now();
    for _ in 0..2 {
        support::signal(coordinator.id(), "-TERM");
        std::thread::sleep(Duration::from_millis(1200));
    }
    let output = coordinator.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    seconds("from the second signal to the end", start);
    assert!(log.contains("(lambert-worker, uninterruptible)"), "{log}");
    drop(frozen);
}

/// Frozen file system. Every write to it hangs until this value is dropped.
struct Frozen {
    folder: String,
}

impl Frozen {
    fn new(dir: &TestDir) -> Option<Self> {
        let (image, folder) = (dir.path("image"), dir.path("frozen"));
        let script = format!(
            "truncate -s 8M {image} && mkfs.ext4 -q {image} && mkdir {folder} && mount -o loop {image} {folder} && \
             fsfreeze --freeze {folder}"
        );
        if !Command::new("sh").args(["-ec", &script]).stderr(Stdio::null()).status().unwrap().success() {
            eprintln!("SKIPPED: a file system is frozen by root, with loop devices and e2fsprogs");
            return None;
        }
        Some(Self { folder })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let script = format!("fsfreeze --unfreeze {0}; sleep 0.5; umount -l {0}", self.folder);
        let _ = Command::new("sh").args(["-c", &script]).status();
    }
}

/// A checkpoint request must stay valid until the current step ends, even if the step is slow.
#[test]
fn a_checkpoint_request_outlasts_a_slow_step() {
    let dir = TestDir::new();
    let (run, slow) = (dir.path("run"), slow_reads(&dir));
    let sets = ["--set", "checkpoint.every_steps=0"];
    let running = Running::start_in(&dir.config(ENDLESS, 2), &run, &sets, &[slow.preload, slow.trigger]);
    until(&run, "\"training\"");
    support::done(&["checkpoint", "save", &run]);
    // In older versions a request expired within this time.
    std::thread::sleep(Duration::from_secs(10));
    std::fs::remove_file(&slow.file).unwrap();
    let start = Instant::now();
    while checkpoints(&run).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint was saved");
        std::thread::sleep(Duration::from_millis(100));
    }
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
}

/// The output of a crashing rank must be in the log file on its host. The control channel does not transfer this
/// output.
#[test]
fn the_output_of_a_crash_is_logged() {
    let dir = TestDir::new();
    let (run, folder) = (dir.path("run"), dir.path("logs"));
    let logs = format!("cluster.log_folder={folder:?}");
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &run, &["--set", &logs]);
    running.reach(5);
    // The signal handler of Open MPI prints the stack and ends the process with the same signal.
    running.kill_rank(1, "-ABRT");
    let start = Instant::now();
    while !printed(&folder).contains("Signal: Aborted (6)") {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", printed(&folder));
        std::thread::sleep(Duration::from_millis(50));
    }
    running.reach_now(10);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    stopped(&run, &ended, 75, "killed by SIGABRT");
    seconds("a rank crashes", start);
}

/// Returns the output of rank 1 in the first attempt.
fn printed(folder: &str) -> String {
    let files = support::tree(Path::new(folder));
    let first = |path: &Path| path.ends_with("attempt-000001/rank-00001.log");
    let file = files.into_iter().find(|(path, _)| first(path));
    file.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
