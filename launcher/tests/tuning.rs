//! How the runs of a tuning are started, stopped and told apart by their ends. Not among the library's tests: some of those wait for
//! any child of their process, and would take the ends of these.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use std::path::Path;

use lambert::tune::runs::{FinishedRun, PlannedRun, StopCause, execute};
use lambert::tune::slots::RunSlot;
use signal_hook::consts::SIGINT;

/// What a shell makes of runs: each of `scripts` in the place of one.
fn make_of(scripts: &[&str], slots: Vec<RunSlot>) -> (StopCause, Vec<(String, FinishedRun)>) {
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
fn each_end_is_told_with_its_words() {
    let slots = vec![RunSlot { gpus: None }];
    let (stopped, ends) = make_of(&["echo much >&2; exit 3", "kill -9 $$", "exit 0"], slots);
    assert_eq!(stopped, StopCause::No);
    let told: Vec<_> = ends.iter().map(|(_, end)| (end.code, &*end.how, &*end.said, end.stopping)).collect();
    let expected =
        [(Some(3), "exit code 3", "much", false), (None, "SIGKILL", "", false), (Some(0), "exit code 0", "", false)];
    assert_eq!(told, expected);
}

#[test]
fn each_has_its_cards() {
    let slots = ["4,5", "6,7"].map(|gpus| RunSlot { gpus: Some(gpus.into()) });
    let script = "echo $CUDA_VISIBLE_DEVICES >&2; sleep 0.5";
    let (_, ends) = make_of(&[script, script, script], slots.into());
    let mut gpus: Vec<_> = ends.iter().map(|(_, end)| &*end.said).collect();
    gpus[..2].sort_unstable();
    assert_eq!(gpus[..2], ["4,5", "6,7"]);
    assert!(["4,5", "6,7"].contains(&gpus[2]), "a slot is used again");
}

#[test]
fn one_that_was_stopped_or_taken_over_stops_the_rest() {
    let two = vec![RunSlot { gpus: None }; 2];
    let patient = "trap 'exit 75' TERM; while :; do sleep 0.05; done";
    for (code, expected) in [(76, StopCause::By(SIGINT)), (77, StopCause::Replaced("sleep 0.5; exit 77".to_owned()))] {
        let first = format!("sleep 0.5; exit {code}");
        let (stopped, ends) = make_of(&[&first, patient, "exit 0"], two.clone());
        assert_eq!(stopped, expected);
        let told: Vec<_> = ends.iter().map(|(name, end)| (&**name, end.code, end.stopping)).collect();
        assert_eq!(told, [(&*first, Some(code), false), (patient, Some(75), true)], "no third is begun");
    }
}
