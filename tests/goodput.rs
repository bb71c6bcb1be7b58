//! Goodput: every second since the first start of a run is in one category, across restarts and coordinators.

use std::path::Path;

use lambert_store::Store;
use serde_json::Value;

use crate::support::{Running, TestDir, done, observed, read_json, wait_for_no_workers};

const RECOVERY: &str = "infrastructure_recovery_from_disruption";

/// The account in the status of a run; its categories add up.
fn goodput(run: &Path) -> Value {
    let goodput = read_json(run.to_str().unwrap(), "status.json")["goodput"].clone();
    let sum: f64 = goodput["seconds"].as_object().unwrap().values().map(|seconds| seconds.as_f64().unwrap()).sum();
    let wall = of(&goodput, "until") - of(&goodput, "started");
    assert!((sum - wall).abs() < 1e-3, "{sum} s in categories, {wall} s of wall-clock time: {goodput}");
    goodput
}

fn of(goodput: &Value, key: &str) -> f64 {
    goodput[key].as_f64().unwrap()
}

fn seconds(goodput: &Value, category: &str) -> f64 {
    goodput["seconds"][category].as_f64().unwrap_or(0.0)
}

#[test]
fn a_run_with_failures_has_time_in_each_category() {
    let run = observed::run();
    let goodput = goodput(run);
    let categories = [
        "productive_step",
        "initialization",
        "training_prep",
        "data_loading",
        "unproductive_checkpoint_save_time",
        "unproductive_checkpoint_restore_time",
        "wasted_progress_from_disruption",
        RECOVERY,
        "evaluation",
    ];
    for category in categories {
        assert!(seconds(&goodput, category) > 0.0, "{category}: {goodput}");
    }
    // The first step of an attempt may begin at once.
    assert!(seconds(&goodput, "program_startup") >= 0.0, "{goodput}");
    assert_eq!(goodput["step"], observed::STEPS);

    // The productive time is that of the steps whose records are in effect.
    let store = Store::open(run.to_str().unwrap()).unwrap();
    let records = lambert_store::records::StepRecords::<Value>::read(&store).unwrap();
    let time = |record: &Value| of(record, "seconds") - of(record, "data_wait") - of(record, "checkpoint");
    let effective: f64 = records.effective().iter().map(|recorded| time(&recorded.record)).sum();
    let productive = seconds(&goodput, "productive_step");
    assert!((productive / effective - 1.0).abs() < 0.05, "{productive} s, the records state {effective} s");

    let text = done(&["status", run.to_str().unwrap()]);
    assert!(text.lines().any(|line| line.starts_with("goodput      ") && line.contains("% of ")), "{text}");
    let status: Value = serde_json::from_str(&done(&["status", run.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(status["status"]["goodput"], goodput);
}

#[test]
fn the_account_continues_after_the_coordinator_was_killed() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(60, 2), dir.path("run"));
    let mut running = Running::start(&config, &run);
    running.reach(20);
    running.wait_until(|| read_json(&run, "status.json")["goodput"]["step"].as_u64() > Some(0));
    running.kill_coordinator("-9");
    drop(running);
    wait_for_no_workers(&run);
    let before = goodput(Path::new(&run));
    let ended = Running::start(&config, &run).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);

    let after = goodput(Path::new(&run));
    assert!((of(&after, "started") - of(&before, "started")).abs() < 1e-3, "{before} {after}");
    assert!(seconds(&after, RECOVERY) > seconds(&before, RECOVERY), "{before} {after}");
    assert!(seconds(&after, "initialization") > seconds(&before, "initialization"), "{before} {after}");
    assert!(seconds(&after, "unproductive_checkpoint_restore_time") > 0.0, "{after}");
    assert_eq!(after["step"], 60);
}
