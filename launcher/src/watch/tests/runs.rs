//! Runs that change or vanish while they are watched.

use std::path::Path;

use lambert_config::RunConfig;
use lambert_config::run::Stage;
use lambert_control::StepRecord;
use lambert_store::Store;
use lambert_store::run::{self, CONFIG, RECORDS, VOCABULARY};
use serde_json::{Value, json};

use super::super::board::Board;
use super::super::point::tests::record;
use super::super::run::WatchedRun;
use crate::metrics::history::tests::{evaluation, line, put, store};
use crate::status::{Downtime, LatestMetrics, OBJECT, Restarts, RunProgress, RunState, Status};

fn put_status(store: &Store, status: &Status) {
    store.put(OBJECT, serde_json::to_vec(status).unwrap().into()).unwrap();
}

fn local(folder: &Path) -> Store {
    Store::open(folder.to_str().unwrap()).unwrap()
}

fn steps(run: &WatchedRun) -> Value {
    run.last().curves.series.columns(0)["columns"]["step"].clone()
}

#[test]
fn the_data_of_a_run_that_vanishes_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (here, elsewhere) = (folder.path().join("run"), folder.path().join("moved"));
    let store = local(&here);
    put(&store, 1, 0, [line(1, 5.0), line(2, 4.0)].concat());
    put_status(&store, &Status { name: "demo".into(), ..Status::default() });
    let mut run = WatchedRun::new(store);
    let before = run.refresh().clone();
    std::fs::rename(&here, &elsewhere).unwrap();
    let gone = run.refresh();
    assert_eq!(gone.curves, before.curves);
    assert_eq!(gone.info.notes.last().unwrap(), "the run's folder or its status is gone; showing the last data");
    std::fs::rename(&elsewhere, &here).unwrap();
    assert_eq!(*run.refresh(), before);
    std::fs::remove_dir_all(here.join(RECORDS)).unwrap();
    let gone = run.refresh();
    assert_eq!(gone.curves, before.curves);
    assert_eq!(gone.info.notes.last().unwrap(), "the run's step records are gone; showing the last data");
}

#[test]
fn torn_objects_have_a_note() {
    let store = store("torn");
    let torn = line(2, 4.0);
    put(&store, 1, 0, line(1, 5.0) + &torn[..torn.len() / 2]);
    let mut run = WatchedRun::new(store.clone());
    let note = run.refresh().info.notes.last().unwrap().clone();
    let expected =
        "damaged records are omitted: memory://history/torn/metrics/attempt-0001-from-000000000.jsonl, line 2: ";
    assert!(note.starts_with(expected), "{note}");
    assert_eq!(steps(&run), json!([1]));
    // The save is repeated.
    put(&store, 1, 0, line(1, 5.0) + &torn);
    assert_eq!(run.refresh().info.notes, ["the run has not started yet"]);
    assert_eq!(steps(&run), json!([1, 2]));
    store.put(OBJECT, "{\"state\":".into()).unwrap();
    let note = run.refresh().info.notes.last().unwrap().clone();
    assert!(note.contains("is not a run status") && note.ends_with("; showing the last data"), "{note}");
    assert_eq!(steps(&run), json!([1, 2]));
}

#[test]
fn a_restart_replaces_repeated_steps() {
    let store = store("restart");
    put(&store, 1, 0, [line(1, 5.0), line(2, 4.0), line(3, 3.0), evaluation(3, 3.5)].concat());
    let mut status = Status { attempt: 1, ..Status::default() };
    put_status(&store, &status);
    let mut run = WatchedRun::new(store.clone());
    let board = Board::new(vec![run.refresh().clone()], 3.0);
    put(&store, 2, 2, [line(3, 2.0), line(4, 1.0)].concat());
    let cause = "rank 1 killed".to_owned();
    let failures = vec![Downtime { attempt: 1, step: 3, seconds: Some(2.5), cause }];
    (status.attempt, status.restarts) = (2, Restarts { count: 1, failures });
    put_status(&store, &status);
    board.update(0, run.refresh());
    let new = board.since(1)["runs"][0].take();
    assert_eq!((&new["series"]["from"], &new["series"]["columns"]["total"]), (&json!(2), &json!([2, 1])));
    let undone = &new["undone"];
    assert_eq!((&undone["attempt"], &undone["step"], &undone["total"]), (&json!([1]), &json!([3]), &json!([3])));
    let marks = new["marks"].as_array().unwrap();
    let restart = marks.iter().find(|mark| mark["kind"] == "restart").unwrap();
    assert_eq!((&restart["step"], &restart["text"]), (&json!(3), &json!("attempt 1: rank 1 killed; 2.5 s lost")));
}

/// The coordinator of the failure has ended before the run had recovered. Regression test: the mark did not change.
#[test]
fn a_restart_without_a_known_cost_recovers() {
    let store = store("recovered");
    let failures = vec![Downtime { attempt: 1, step: 3, seconds: None, cause: "killed".to_owned() }];
    let progress = |step| RunProgress { step, ..RunProgress::default() };
    let mut status = Status { attempt: 2, restarts: Restarts { count: 1, failures }, ..Status::default() };
    let mut run = WatchedRun::new(store.clone());
    for (step, text) in [(2, "not recovered yet"), (3, "recovered, time lost unknown")] {
        status.progress = progress(step);
        put_status(&store, &status);
        let marks = &run.refresh().curves.marks;
        assert_eq!(marks[0].text, format!("attempt 1: killed; {text}"));
    }
}

#[test]
fn rolled_back_steps_are_undone_before_they_are_repeated() {
    let store = store("rolled-back");
    put(&store, 1, 0, [line(1, 5.0), line(2, 4.0), line(3, 900.0)].concat());
    let mut run = WatchedRun::new(store.clone());
    run.refresh();
    store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":2}".into()).unwrap();
    let curves = &run.refresh().curves;
    assert_eq!((&curves.undone["step"], &curves.undone["total"]), (&json!([3]), &json!([900])));
    assert_eq!(steps(&run), json!([1, 2]));
}

#[test]
fn steps_of_the_status_are_shown_until_their_records_are_stored() {
    let store = store("live");
    put(&store, 1, 0, line(1, 5.0));
    let training = |attempt, record: StepRecord, step| Status {
        state: RunState::Training,
        attempt,
        progress: RunProgress { step, ..RunProgress::default() },
        latest: LatestMetrics { record: Some(record), ..LatestMetrics::default() },
        ..Status::default()
    };
    let mut run = WatchedRun::new(store.clone());
    for step in [3, 6] {
        put_status(&store, &training(1, record(step, 4.0), step));
        run.refresh();
    }
    assert_eq!(steps(&run), json!([1, 3, 6]));
    // Steps between count like the next one that is known.
    let samples = run.last().curves.series.columns(2)["columns"]["samples"].clone();
    assert_eq!(samples, json!([5 * 16]));
    put(&store, 1, 1, [line(2, 4.0), line(3, 4.0)].concat());
    run.refresh();
    assert_eq!(steps(&run), json!([1, 2, 3, 6]));
    // A restart from step 3: the record is that of the attempt before.
    put_status(&store, &training(2, record(6, 4.0), 3));
    run.refresh();
    assert_eq!(steps(&run), json!([1, 2, 3]));
    put_status(&store, &training(2, record(5, 4.0), 5));
    run.refresh();
    assert_eq!(steps(&run), json!([1, 2, 3, 5]));
}

#[test]
fn a_long_run_has_few_points_and_a_refresh_is_small() {
    let store = store("long");
    let lines =
        |from: u64, to: u64| (from + 1..=to).map(|step| line(step, 1.0 + 1.0 / step as f64)).collect::<String>();
    put(&store, 1, 0, lines(0, 7_900));
    let config = RunConfig { stage: vec![Stage { name: String::new(), ..Stage::default() }], ..RunConfig::default() };
    store.put(CONFIG, config.to_toml().unwrap().into()).unwrap();
    store.put(VOCABULARY, "a\nb\n".into()).unwrap();
    let mut run = WatchedRun::new(store.clone());
    let board = Board::new(vec![run.refresh().clone()], 3.0);
    assert_eq!(run.last().curves.series.buckets.len(), 1975);
    let refresh = |run: &mut WatchedRun, from, to| {
        let since = board.since(0)["revision"].as_u64().unwrap();
        put(&store, 1, from, lines(from, to));
        board.update(0, run.refresh());
        board.since(since).to_string().len()
    };
    let small = refresh(&mut run, 7_900, 7_910);
    assert!(small < 10_000, "{small} bytes for ten steps");
    // Buckets become twice as wide: all are new.
    let all = refresh(&mut run, 7_910, 8_010);
    assert_eq!(run.last().curves.series.buckets.len(), 1002);
    assert!(all < 400_000, "{all} bytes before compression");
    println!("refresh of ten steps: {small} bytes; of all buckets: {all} bytes before compression");
}
