//! A growing global batch has the same samples for every world size and after every restart.

use crate::support::{Running, TestDir, assert_same_bits};
use lambert_control::StepRecord;

const STEPS: u64 = 30;

fn start(dir: &TestDir, name: &str, ranks: usize) -> Running {
    let arguments = ["--set", "stage.0.batch_ramp={ start = 3, steps = 20 }"];
    Running::start_with(&dir.config(STEPS, ranks), &dir.path(name), &arguments)
}

fn facts(records: &[StepRecord]) -> Vec<(u64, u64, u64)> {
    records.iter().map(|record| (record.step, record.batch.samples, record.batch.digest)).collect()
}

#[test]
fn a_growing_batch_has_the_same_samples_after_a_stop_and_on_one_rank() {
    let dir = TestDir::new();
    let whole = start(&dir, "whole", 2).end();
    assert_eq!(whole.code, Some(0), "{}", whole.log);
    let sizes: Vec<u64> = whole.records.iter().map(|record| record.batch.samples).collect();
    let expected: Vec<u64> = (0..STEPS).map(|done| if done < 20 { 3 + 13 * done / 20 } else { 16 }).collect();
    assert_eq!(sizes, expected);

    let mut running = start(&dir, "resumed", 2);
    running.reach(10);
    running.kill_coordinator("-TERM");
    let stopped = running.end();
    assert_eq!(stopped.code, Some(75), "{}", stopped.log);
    let resumed = start(&dir, "resumed", 2).end();
    assert_eq!(resumed.code, Some(0), "{}", resumed.log);
    assert!(resumed.records[0].step < 20, "the run was not stopped within the ramp");
    assert_same_bits(&dir.path("whole"), &dir.path("resumed"));

    let alone = start(&dir, "alone", 1).end();
    assert_eq!(facts(&alone.records), facts(&whole.records));
}
