//! Tests of the execution of the runs of a sweep: start, stop, results. This is a separate test program, because some
//! library tests wait for any child process and would reap the children of these tests.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use lambert::tune::runs::{FinishedRun, PlannedRun, StopCause, execute};
use lambert::tune::slots::RunSlot;
use signal_hook::consts::SIGINT;

/// Executes shell scripts in place of runs.
fn execute_scripts(scripts: &[&str], slots: Vec<RunSlot>) -> (StopCause, Vec<(String, FinishedRun)>) {
    let planned = |script: &&str| PlannedRun {
        name: (*script).to_owned(),
        settings: Vec::new(),
        arguments: vec!["-c".to_owned(), (*script).to_owned()],
    };
    let mut ends = Vec::new();
    let take = |ended: FinishedRun| {
        ends.push((ended.planned.name.clone(), ended));
        Ok(())
    };
    let stopped = execute(Path::new("sh"), scripts.iter().map(planned).collect(), slots, |_| (), take).unwrap();
    (stopped, ends)
}

#[test]
fn each_run_has_its_exit_status_and_last_message() {
    let slots = vec![RunSlot { gpus: None }];
    let (stopped, ends) = execute_scripts(&["echo much >&2; exit 3", "kill -9 $$", "exit 0"], slots);
    assert_eq!(stopped, StopCause::No);
    let results: Vec<_> = ends.iter().map(|(_, end)| (end.code, &*end.how, &*end.output, end.stopping)).collect();
    let expected =
        [(Some(3), "exit code 3", "much", false), (None, "SIGKILL", "", false), (Some(0), "exit code 0", "", false)];
    assert_eq!(results, expected);
}

#[test]
fn each_run_has_its_gpus() {
    let slots = ["4,5", "6,7"].map(|gpus| RunSlot { gpus: Some(gpus.into()) });
    let script = "echo $CUDA_VISIBLE_DEVICES >&2; sleep 0.5";
    let (_, ends) = execute_scripts(&[script, script, script], slots.into());
    let mut gpus: Vec<_> = ends.iter().map(|(_, end)| &*end.output).collect();
    gpus[..2].sort_unstable();
    assert_eq!(gpus[..2], ["4,5", "6,7"]);
    assert!(["4,5", "6,7"].contains(&gpus[2]), "a slot is not reused");
}

#[test]
fn a_stopped_or_replaced_run_stops_the_others() {
    let two = vec![RunSlot { gpus: None }; 2];
    let long_running = "trap 'exit 75' TERM; while :; do sleep 0.05; done";
    for (code, expected) in [(76, StopCause::By(SIGINT)), (77, StopCause::Replaced("sleep 0.5; exit 77".to_owned()))] {
        let first = format!("sleep 0.5; exit {code}");
        let (stopped, ends) = execute_scripts(&[&first, long_running, "exit 0"], two.clone());
        assert_eq!(stopped, expected);
        let results: Vec<_> = ends.iter().map(|(name, end)| (&**name, end.code, end.stopping)).collect();
        assert_eq!(results, [(&*first, Some(code), false), (long_running, Some(75), true)], "a third run was started");
    }
}
