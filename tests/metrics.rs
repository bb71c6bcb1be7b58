//! Tests of the output of `lambert metrics` with the programs that read it: pandas, pyarrow and TensorBoard.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{TestDir, cache, copy, done, lambert, observed, run};
use serde_json::Value;

/// Curve of a scalar. Each point has a step and a value.
type Points = Vec<(u64, Option<f64>)>;

/// Runs tests/readers/metrics.py. Returns `None` if the packages that it needs are missing.
fn read<T: serde::de::DeserializeOwned>(arguments: &[&str]) -> Option<T> {
    let packages = cache("LAMBERT_TEST_READERS", "readers-2")?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/metrics.py");
    let output = Command::new("python3").env("PYTHONPATH", packages).arg(script).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    // Python writes a non-finite loss as NaN, which is not valid JSON.
    let text = String::from_utf8(output.stdout).unwrap().replace("NaN", "null");
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
}

fn lines(run: &str) -> Vec<Value> {
    done(&["metrics", run]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Loss of each step that was not undone by a rollback or a restart.
fn losses(run: &str) -> Points {
    let mut points: Points = lines(run)
        .iter()
        .filter(|line| line["undone"] == false && line.get("event").is_none())
        .map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64()))
        .collect();
    points.sort_by_key(|(step, _)| *step);
    points
}

fn assert_near(found: &Points, expected: &Points) {
    let steps = |points: &Points| points.iter().map(|(step, _)| *step).collect::<Vec<_>>();
    assert_eq!(steps(found), steps(expected));
    for ((step, found), (_, expected)) in found.iter().zip(expected) {
        let (found, expected) = (found.unwrap(), expected.unwrap());
        assert!((found / expected - 1.0).abs() < 1e-6, "step {step}: {found}, not {expected}");
    }
}

#[test]
fn json_lines_have_every_attempt_and_mark_undone_steps() {
    let run = observed::run().to_str().unwrap();
    let lines = lines(run);
    assert!(losses(run).iter().map(|(step, _)| *step).eq(1..=observed::STEPS), "{:?}", losses(run));
    let attempts: Vec<u64> = lines.iter().map(|line| line["attempt"].as_u64().unwrap()).collect();
    assert!(attempts.is_sorted() && attempts.first() == Some(&1) && attempts.last() >= Some(&3), "{attempts:?}");
    let falsified = lines.iter().find(|line| line["loss"].as_f64() > Some(1000.0)).unwrap();
    assert_eq!((&falsified["undone"], &falsified["step"]), (&Value::Bool(true), &observed::FALSIFIED.into()));
    let steps = lines.iter().filter(|line| line.get("event").is_none());
    let peaks: Vec<u64> = steps.map(|step| step["peak_memory"].as_u64().unwrap()).collect();
    assert!(peaks.iter().all(|peak| *peak > 50_000_000), "{peaks:?}");
    let evaluations = lines.iter().filter(|line| line["event"] == "evaluation" && line["undone"] == false);
    assert!(evaluations.map(|line| line["step"].as_u64().unwrap()).eq((0..=observed::STEPS).step_by(10).skip(1)));
}

#[test]
fn pandas_and_pyarrow_read_the_tables() {
    let (dir, run) = (TestDir::new(), observed::run().to_str().unwrap());
    let (csv, parquet) = (dir.path("run.csv"), dir.path("run.parquet"));
    done(&["metrics", run, "--format", "csv", "--output", &csv]);
    done(&["metrics", run, "--format", "parquet", "--output", &parquet]);
    let Some(found) = read::<Value>(&["tables", &csv, &parquet]) else { return };
    let steps: Vec<Value> = lines(run).into_iter().filter(|line| line.get("event").is_none()).collect();
    for format in ["csv", "parquet"] {
        for name in ["attempt", "undone", "step", "loss", "learning_rate", "peak_memory", "stage"] {
            let column = found[format][name].as_array().unwrap();
            assert!(column.len() >= steps.len(), "{format}: {} rows", column.len());
            for (row, step) in column.iter().zip(&steps) {
                let equal = row == &step[name] || row.as_f64().zip(step[name].as_f64()).is_some_and(|(a, b)| a == b);
                assert!(equal, "{format}, {name} of step {}: {row}, not {}", step["step"], step[name]);
            }
        }
        let held_out = found[format]["held_out_mlm_loss"].as_array().unwrap();
        assert!(held_out.iter().filter(|loss| !loss.is_null()).count() >= 9, "{format}: {held_out:?}");
    }
    let types = ["step", "undone", "loss", "stage", "peak_memory"].map(|name| found["types"][name].as_str().unwrap());
    assert_eq!(types, ["int64", "bool", "double", "string", "int64"]);
}

/// Reads the scalars of a folder with TensorBoard's accumulator.
const ACCUMULATOR: [&[&str]; 1] = [&["accumulator"]];
/// Reads the scalars of a folder with each reader of TensorBoard. A server takes seconds to start.
const ALL_READERS: [&[&str]; 3] = [&["accumulator"], &["server", "true"], &["server", "false"]];

/// Compares the scalars in `folder` with the records of a run. Returns false if the packages of the readers are missing.
fn assert_history(readers: &[&[&str]], folder: &str, run: &str) -> bool {
    for reader in readers {
        let arguments = [&reader[..1], &[folder], &reader[1..]].concat();
        let Some(scalars) = read::<BTreeMap<String, Points>>(&arguments) else { return false };
        assert_near(&scalars["loss/total"], &losses(run));
        let held_out: Vec<u64> = scalars["held-out/mlm"].iter().map(|(step, _)| *step).collect();
        assert!(held_out.iter().copied().eq((0..=observed::STEPS).step_by(10).skip(1)), "{held_out:?}");
        for tag in ["optimizer/learning_rate", "seconds/step", "throughput/tokens_per_second", "memory/peak_bytes"] {
            assert_eq!(scalars[tag].len() as u64, observed::STEPS, "{tag}");
        }
        for (tag, points) in &scalars {
            assert!(points.is_sorted_by_key(|(step, _)| *step), "{tag} folds back: {points:?}");
        }
    }
    true
}

#[test]
fn the_coordinator_writes_event_files_during_a_run() {
    assert_history(&ACCUMULATOR, observed::events().to_str().unwrap(), observed::run().to_str().unwrap());
}

#[test]
fn tensorboard_reads_the_effective_history_of_a_finished_run() {
    let (dir, run) = (TestDir::new(), observed::run().to_str().unwrap());
    let folder = dir.path("logs");
    done(&["metrics", run, "--tensorboard", &folder]);
    if !assert_history(&ACCUMULATOR, &folder, run) {
        return;
    }
    let texts: Value = read(&["texts", &folder]).unwrap();
    assert!(texts["run.toml"][0].as_str().unwrap().contains("micro_batch_tokens = 256"), "{texts}");
    assert!(texts["versions"][0].as_str().unwrap().contains("lambert 0."), "{texts}");
    let hyperparameters = &texts["hparams"];
    assert_eq!(hyperparameters["stage.1.layers"], 4.0, "{hyperparameters}");
    assert_eq!(hyperparameters["device.kind"], "cpu", "{hyperparameters}");
}

/// Process of `lambert metrics --follow`. It is killed on drop, so it also ends if a test fails.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Size of the event file in `folder`.
fn written(folder: &str) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// Waits until the event file is larger than `before` bytes. Returns its size a few seconds later.
fn wait_for_growth(folder: &str, before: u64) -> u64 {
    let start = Instant::now();
    while written(folder) <= before {
        assert!(start.elapsed() < Duration::from_secs(120), "nothing was appended to {folder}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // If an object is copied during a refresh, only the next refresh reads it.
    std::thread::sleep(Duration::from_secs(4));
    written(folder)
}

/// The objects of a run appear attempt by attempt, so that the follower has written each undone step before it learns
/// that the step is undone.
#[test]
fn curves_of_a_followed_run_never_fold_back() {
    let (dir, whole) = (TestDir::new(), observed::run());
    let (run, folder) = (dir.path("run"), dir.path("logs"));
    std::fs::create_dir_all(format!("{run}/metrics")).unwrap();
    std::fs::copy(whole.join("run.toml"), format!("{run}/run.toml")).unwrap();
    let mut metrics: Vec<PathBuf> =
        std::fs::read_dir(whole.join("metrics")).unwrap().map(|entry| entry.unwrap().path()).collect();
    metrics.sort();
    let arguments = ["metrics", &run, "--tensorboard", &folder, "--follow"];
    let mut follower = Follower(Command::new(lambert()).args(arguments).stderr(Stdio::piped()).spawn().unwrap());
    let mut bytes = wait_for_growth(&folder, 0);
    let attempt = |object: &PathBuf| object.file_name().unwrap().to_str().unwrap()[..12].to_owned();
    for objects in metrics.chunk_by(|one, next| attempt(one) == attempt(next)) {
        for object in objects {
            std::fs::copy(object, Path::new(&run).join("metrics").join(object.file_name().unwrap())).unwrap();
        }
        bytes = wait_for_growth(&folder, bytes);
    }
    copy(&whole.join("rollbacks"), &Path::new(&run).join("rollbacks"));
    std::fs::copy(whole.join("status.json"), format!("{run}/status.json")).unwrap();
    assert!(follower.0.wait().unwrap().success());
    assert_history(&ALL_READERS, &folder, whole.to_str().unwrap());
}

#[test]
fn a_run_that_is_none_and_a_missing_output_file_are_errors() {
    let dir = TestDir::new();
    let none = run(&["metrics", &dir.path("none")]);
    assert!(none.code == 2 && none.err.contains("is not a run"), "{}", none.err);
    let unnamed = run(&["metrics", observed::run().to_str().unwrap(), "--format", "parquet"]);
    assert!(unnamed.code == 2 && unnamed.err.contains("--output FILE"), "{}", unnamed.err);
}
