//! Tests that kills leave the final bits of a run unchanged.

use std::time::Duration;

use crate::support::{self, Running, TestDir, assert_same_bits, checkpoints, final_state, workers};
use lambert_control::StepRecord;
use lambert_dataset::random::{Key, Rng};

const STEPS: u64 = 120;

/// Returns a random generator for the times of the kills. Its seed differs between executions of the test. The seed is
/// printed, so that a failure can be repeated.
fn kill_times() -> Rng {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("LAMBERT_TEST_SEED").map_or(now, |seed| seed.parse().unwrap());
    eprintln!("moments from LAMBERT_TEST_SEED={seed}");
    Key::new(seed).rng()
}

/// Trains a run without a disturbance. Returns its URL.
fn undisturbed(dir: &TestDir) -> String {
    let run = dir.path("undisturbed");
    let ended = Running::start(&dir.config(STEPS, 2), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.records.len() as u64, STEPS);
    assert_eq!(checkpoints(&run)[0], format!("step-{STEPS:09}-a0001"));
    run
}

#[test]
fn killed_ranks_and_coordinators_leave_the_result_unchanged() {
    let dir = TestDir::new();
    let reference = undisturbed(&dir);
    let mut kill_times = kill_times();
    kill_ranks(&dir, &reference, &mut kill_times);
    kill_coordinators(&dir, &reference, &mut kill_times);
    assert_a_shifted_cursor_is_detected(&dir, &reference);
}

/// Kills one rank three times in a run, before and after checkpoints.
fn kill_ranks(dir: &TestDir, reference: &str, kill_times: &mut Rng) {
    let run = dir.path("killed-ranks");
    let mut running = Running::start(&dir.config(STEPS, 2), &run);
    let mut killed = Vec::new();
    for (first, rank) in [(1, 1), (25, 0), (50, 1)] {
        let step = first + kill_times.below(15);
        running.reach(step);
        std::thread::sleep(Duration::from_millis(kill_times.below(30)));
        eprintln!("kill -9 of rank {rank} after step {step}");
        running.kill_rank(rank, "-9");
        killed.push(rank);
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    for rank in killed {
        let line = ended.log.lines().find(|line| {
            line.contains(&format!("rank {rank} (pid ")) && line.contains("killed by SIGKILL; restarting all workers")
        });
        assert!(line.is_some(), "rank {rank} is not named in {}", ended.log);
    }
    assert_eq!(ended.log.matches("recovered to step").count(), 3, "{}", ended.log);
    assert_same_bits(reference, &run);
}

/// Kills the coordinator twice. Its workers must exit, and the same command must resume the run.
fn kill_coordinators(dir: &TestDir, reference: &str, kill_times: &mut Rng) {
    let run = dir.path("killed-coordinators");
    for first in [1, 30] {
        let mut running = Running::start(&dir.config(STEPS, 2), &run);
        let step = first + kill_times.below(20);
        running.reach(step);
        std::thread::sleep(Duration::from_millis(kill_times.below(30)));
        assert_eq!(workers(&run).len(), 2);
        eprintln!("kill -9 of the coordinator after step {step}");
        running.kill_coordinator("-9");
        assert_eq!(running.end().code, None);
        support::wait_for_no_workers(&run);
    }
    let ended = Running::start(&dir.config(STEPS, 2), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(reference, &run);
}

/// Negative control: if the data cursor is shifted by one sample, the run must end with other weights.
fn assert_a_shifted_cursor_is_detected(dir: &TestDir, reference: &str) {
    let run = dir.path("off-by-one");
    let mut running = Running::start(&dir.config(STEPS, 2), &run);
    running.reach(20);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    shift_cursor(&run);
    let ended = Running::start(&dir.config(STEPS, 2), &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(!ended.log.contains("skipped checkpoint"), "the changed manifest was rejected: {}", ended.log);
    assert_ne!(final_state(&run), final_state(reference), "another order of samples gave the same weights");
}

/// A checkpoint is changed to a later step. The run must then resume with the batches of that step, because only the
/// cursor determines the batches.
#[test]
fn the_cursor_alone_determines_the_next_batches() {
    let dir = TestDir::new();
    let batches =
        |records: &[StepRecord]| records.iter().map(|r| (r.step, r.epoch, r.batch.digest)).collect::<Vec<_>>();
    let straight = Running::start(&dir.config(STEPS, 2), &dir.path("straight")).end();
    let run = dir.path("moved");
    let mut running = Running::start(&dir.config(STEPS, 2), &run);
    running.reach(10);
    running.kill_coordinator("-TERM");
    assert_eq!(running.end().code, Some(75));
    support::move_on(&run, STEPS - 30);
    let moved = Running::start(&dir.config(STEPS, 2), &run).end();
    assert_eq!((straight.code, moved.code), (Some(0), Some(0)), "{}", moved.log);
    assert_eq!(batches(&moved.records), batches(&straight.records)[STEPS as usize - 30..]);
}

/// Adds one to the cursor in the manifest of the newest checkpoint, and updates the checksum of the manifest.
fn shift_cursor(run: &str) {
    let path = format!("{run}/checkpoints/{}/manifest.json", checkpoints(run)[0]);
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once("\"cursor\": {").unwrap();
    let (key, rest) = rest.split_once("\": ").unwrap();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    let cursor: u64 = rest[..digits].parse().unwrap();
    let text = format!("{head}\"cursor\": {{{key}\": {}{}", cursor + 1, &rest[digits..]);
    std::fs::write(path, support::seal(&text)).unwrap();
}
