//! Tests of saves that cannot complete, because a write never returns, the state is not finite, or the run is stopped
//! during a long operation. All ranks must make the same decision in time, and no intact checkpoint may be lost.

use std::time::{Duration, Instant};

use crate::coordinator::until;
use crate::support::preload::BlockingFsync;
use crate::support::{Ended, Running, TestDir, assert_same_bits, checkpoints, wait_for_no_workers};
use lambert_store::{Store, checkpoint};

/// A number of steps that no run completes before its test ends it.
const ENDLESS: u64 = 1_000_000;

/// Maximum time until a run ends.
const MAX_END: Duration = Duration::from_secs(60);

/// Converts settings to arguments.
fn sets(sets: &[&str]) -> Vec<String> {
    sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect()
}

fn start(dir: &TestDir, stuck: &BlockingFsync, name: &str, more: &[&str]) -> Running {
    let more = sets(more);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    Running::start_in(&dir.config(ENDLESS, 2), &dir.path(name), &more, &stuck.environment)
}

fn says(ended: &Ended, words: &[&str]) {
    words.iter().for_each(|word| assert!(ended.log.contains(word), "no {word:?} in {}", ended.log));
}

fn assert_within(seconds: u64, since: Instant) {
    let took = since.elapsed();
    eprintln!("took {:.1} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(seconds), "{took:?}");
}

#[test]
fn a_hanging_write_ends_the_run() {
    let dir = TestDir::new();
    let (stuck, url) = (BlockingFsync::new(&dir), dir.path("run"));
    let mut running = start(&dir, &stuck, "run", &["checkpoint.give_up_minutes=0.1"]);
    wait_for_checkpoint(&mut running, &url);
    stuck.block("optimizer-00001");
    let begun = Instant::now();
    let ended = running.end_within(MAX_END);
    assert_within(30, begun);
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    says(&ended, &[" s: rank 1 is writing ", "optimizer-00001-of-00002.safetensors; the run ends if it is not saved"]);
    says(&ended, &["cannot save checkpoint", "not saved within 0.1 minutes (checkpoint.give_up_minutes): rank 1 is"]);
    assert!(!ended.log.contains("attempt 2"), "{}", ended.log);
    wait_for_no_workers(&url);
    assert!(!checkpoints(&url).is_empty());
}

#[test]
fn a_stop_does_not_wait_for_a_hanging_write() {
    let dir = TestDir::new();
    let (stuck, url) = (BlockingFsync::new(&dir), dir.path("run"));
    let mut running = start(&dir, &stuck, "run", &["cluster.limits.stop_seconds=2", "checkpoint.every_steps=3"]);
    running.reach(2);
    stuck.block("optimizer-00000");
    running.reach_now(10);
    running.kill_coordinator("-TERM");
    let begun = Instant::now();
    let ended = running.end_within(MAX_END);
    assert_within(20, begun);
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    says(&ended, &["not saved within 2 s of the request to stop (cluster.limits.stop_seconds): rank 0 is writing "]);
    wait_for_no_workers(&url);
}

/// A limit of zero minutes ends a run at the first failed save, but not during a slow save.
#[test]
fn a_limit_of_zero_minutes_tolerates_a_slow_save() {
    let dir = TestDir::new();
    let stuck = BlockingFsync::new(&dir);
    let mut running = start(&dir, &stuck, "run", &["checkpoint.give_up_minutes=0"]);
    stuck.block("optimizer-00001");
    running.reach(14);
    std::thread::sleep(Duration::from_secs(2));
    stuck.release();
    running.reach_now(5);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    says(&ended, &["saved checkpoint step-000000007-a0001"]);
}

/// If a stop is requested during the save before a growth, the training of the deeper model must not start.
#[test]
fn a_stop_before_growth_does_not_train_the_deeper_model() {
    let dir = TestDir::new();
    let (stuck, url) = (BlockingFsync::new(&dir), dir.path("run"));
    let deeper = format!(
        "stage=[{{name=\"one\",data={0:?},steps=6,global_batch=16,layers=1}},\
         {{name=\"two\",data={0:?},steps=1000000,global_batch=16,layers=2}}]",
        dir.path("data/train")
    );
    stuck.block("optimizer-00001");
    let mut running = start(&dir, &stuck, "run", &[&deeper]);
    running.reach(6);
    running.kill_coordinator("-TERM");
    // A command takes up to two seconds to reach a rank.
    std::thread::sleep(Duration::from_secs(3));
    stuck.release();
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.records.iter().all(|record| record.step <= 6), "{}", ended.log);
    assert_eq!(checkpoints(&url), ["step-000000006-a0001"]);
}

fn train(dir: &TestDir, name: &str, more: &[&str]) -> Ended {
    let more = sets(more);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    Running::start_with(&dir.config(21, 2), &dir.path(name), &more).end()
}

#[test]
fn a_nonfinite_state_is_not_saved_and_the_run_resumes_from_the_previous_checkpoint() {
    let dir = TestDir::new();
    let clean = train(&dir, "clean", &[]);
    let spoilt = train(&dir, "spoilt", &["test.infinite_moments=[10]", "checkpoint.keep=1"]);
    assert_eq!((clean.code, spoilt.code), (Some(0), Some(0)), "{}", spoilt.log);
    says(&spoilt, &["of exp_avg_sq of ", " is not finite on rank 1, after step ", ": no checkpoint was saved"]);
    assert_eq!(spoilt.log.matches("restarting all workers").count(), 1, "{}", spoilt.log);
    assert!(!spoilt.log.contains("step-000000014-a0001"), "{}", spoilt.log);
    // On a slow disk there may be no checkpoint from before the fault.
    let resumes = spoilt.log.contains("resuming from step-000000007-a0001");
    assert_eq!(resumes, spoilt.log.contains("saved checkpoint step-000000007-a0001"), "{}", spoilt.log);
    assert_same_bits(&dir.path("clean"), &dir.path("spoilt"));
}

/// A stop must not wait for the store, because the state cannot be saved anyway.
#[test]
fn a_stop_with_a_nonfinite_state_ends_at_once() {
    let dir = TestDir::new();
    let more = sets(&["test.infinite_moments=[3]", "checkpoint.every_steps=0"]);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &dir.path("run"), &more);
    running.reach(5);
    running.kill_coordinator("-TERM");
    let begun = Instant::now();
    let ended = running.end_within(MAX_END);
    assert_within(20, begun);
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    says(&ended, &["is not finite on rank 1"]);
}

/// Workers that get no responses must exit cleanly, and no rank may be blamed.
#[test]
fn a_suspended_coordinator_does_not_count_as_a_failure() {
    let dir = TestDir::new();
    let url = dir.path("run");
    let more = sets(&["cluster.limits.coordinator_seconds=2", "cluster.restart.limit=0"]);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &url, &more);
    wait_for_checkpoint(&mut running, &url);
    running.kill_coordinator("-STOP");
    wait_for_no_workers(&url);
    running.kill_coordinator("-CONT");
    while running.latest().is_some() && !std::fs::exists(format!("{url}/lease-000002")).unwrap() {}
    running.reach_now(10);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    says(&ended, &["no reply from this coordinator, which was suspended for "]);
    assert!(!ended.log.contains("killed by SIG"), "{}", ended.log);
}

/// The last evaluation may take hours. If it is interrupted by a stop, the next start must run it. The final bits must
/// stay the same.
#[test]
fn an_evaluation_interrupted_by_a_stop_runs_at_the_next_start() {
    let dir = TestDir::new();
    let (url, reference) = (dir.path("run"), dir.path("undisturbed"));
    let data = format!("evaluation.data={}", dir.path("data/train"));
    // A command takes up to two seconds to reach a rank. With this model, the evaluation takes longer.
    let model = ["model.layers=3", "model.hidden=256", "model.intermediate=1024"];
    let more = sets(&[&[&*data, "evaluation.samples=0"], &model[..]].concat());
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let config = dir.config(7, 2);
    let undisturbed = Running::start_with(&config, &reference, &more).end();
    assert_eq!(undisturbed.code, Some(0), "{}", undisturbed.log);
    let mut running = Running::start_with(&config, &url, &more);
    running.reach(7);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(!ended.log.contains("evaluation at step"), "{}", ended.log);
    let newest = checkpoints(&url).remove(0);
    let manifest = checkpoint::verify(&Store::open(&url).unwrap(), &newest).unwrap().manifest;
    assert_eq!((manifest.step, manifest.state["evaluation_pending"].as_bool()), (7, Some(true)));
    let resumed = Running::start_with(&config, &url, &more).end();
    assert_eq!(resumed.code, Some(0), "{}", resumed.log);
    let losses = |log: &str| {
        let lines = log.lines().filter_map(|line| line.split_once("evaluation at step ")).map(|(_, rest)| rest);
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(losses(&resumed.log), losses(&undisturbed.log));
    assert_same_bits(&reference, &url);
}

/// There is nothing to save before the first step. The next start must run the evaluation again.
#[test]
fn a_stop_during_the_evaluation_before_the_first_step_ends_at_once() {
    let dir = TestDir::new();
    let (url, config) = (dir.path("run"), dir.config(ENDLESS, 2));
    let data = format!("evaluation.data={}", dir.path("data/train"));
    // A command takes up to two seconds to reach a rank. With this model, the evaluation takes longer.
    let model = ["model.layers=6", "model.hidden=256", "model.intermediate=1024"];
    let more = sets(&[&[&*data, "evaluation.samples=0", "evaluation.at_start=true"], &model[..]].concat());
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let running = Running::start_with(&config, &url, &more);
    until(&url, "\"evaluating\"");
    running.kill_coordinator("-TERM");
    let ended = running.end_within(MAX_END);
    assert_eq!((ended.code, ended.records.len()), (Some(75), 0), "{}", ended.log);
    assert!(!ended.log.contains("evaluation at step"), "{}", ended.log);
    assert!(checkpoints(&url).is_empty());
    let mut resumed = Running::start_with(&config, &url, &more);
    resumed.reach(1);
    resumed.kill_coordinator("-TERM");
    let resumed = resumed.end();
    assert_eq!(resumed.code, Some(75), "{}", resumed.log);
    assert!(resumed.log.contains("evaluation at step 0: "), "{}", resumed.log);
}

/// Waits until there is a checkpoint to resume from.
fn wait_for_checkpoint(running: &mut Running, url: &str) {
    running.reach(8);
    while checkpoints(url).is_empty() {
        running.reach_now(1);
    }
}
