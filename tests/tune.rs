//! `lambert tune`: concurrent runs, a kill, the best run, and rejected sweeps.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{self, TestDir, lambert};

/// Writes a configuration with one rank and held-out samples.
fn config(place: &TestDir, steps: u64) -> String {
    let text =
        std::fs::read_to_string(place.config(steps, 1)).unwrap().replace("backend = \"mpi\"", "backend = \"auto\"");
    let more =
        format!("[evaluation]\ndata = {:?}\nevery_steps = 1000\n[guard]\nrollbacks = 0\n", place.path("data/held-out"));
    place.file("tune.toml", format!("{text}{more}"))
}

fn start(arguments: &[&str]) -> Child {
    Command::new(lambert()).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits for the end of a tuning process. Returns its exit code.
fn code(mut tuning: Child) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = tuning.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > Duration::from_secs(60) {
            tuning.kill().unwrap();
            panic!("the tuning did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Tuning of runs that never finish. Two runs execute at a time.
struct Endless {
    place: TestDir,
    config: String,
    runs: String,
}

impl Endless {
    fn new() -> Self {
        let place = TestDir::new();
        let (config, runs) = (config(&place, 1_000_000), place.path("runs"));
        Self { place, config, runs }
    }

    fn line(&self) -> Vec<&str> {
        let fixed = ["tune", "--config", &self.config, "--runs", &self.runs, "--parallel", "2", "--grid"];
        [&fixed[..], &["run.seed=1,2,3"]].concat()
    }

    /// URLs of the first two runs.
    fn first_runs(&self) -> [String; 2] {
        ["seed=1", "seed=2"].map(|name| self.place.path(&format!("runs/{name}")))
    }

    /// Waits until the first two runs have workers and at least one checkpoint each.
    fn wait(&self) {
        let begun = Instant::now();
        let trains =
            |run: &String| std::path::Path::new(run).join("status.json").exists() && !support::workers(run).is_empty();
        while !self.first_runs().iter().all(trains)
            || self.first_runs().iter().any(|run| support::checkpoints(run).is_empty())
        {
            assert!(begun.elapsed() < Duration::from_secs(100), "the two runs have not started");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asserts that the first two runs have ended and that there is no third run.
    fn assert_ended(&self) {
        for run in self.first_runs() {
            assert!(support::workers(&run).is_empty(), "{run} has workers");
        }
        assert!(!std::path::Path::new(&self.place.path("runs/seed=3")).exists());
        assert!(!std::path::Path::new(&self.place.path("runs/tune.json")).exists(), "a stopped run is in the results");
    }
}

#[test]
fn signals_are_forwarded_to_the_runs() {
    let endless = Endless::new();
    let script = r#"trap '' HUP; exec "$0" "$@""#;
    let mut nohup = Command::new("sh");
    nohup.args(["-c", script]).arg(lambert()).args(endless.line()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut tuning = nohup.spawn().unwrap();
    endless.wait();
    // The tuning ignores SIGHUP, as under nohup.
    support::signal(tuning.id(), "-HUP");
    std::thread::sleep(Duration::from_secs(1));
    assert!(tuning.try_wait().unwrap().is_none(), "an ignored signal ended the tuning");
    support::signal(tuning.id(), "-TERM");
    assert_eq!(code(tuning), Some(75));
    endless.assert_ended();

    let tuning = start(&endless.line());
    endless.wait();
    support::signal(tuning.id(), "-INT");
    assert_eq!(code(tuning), Some(76));
    endless.assert_ended();

    let temporary = endless.place.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = Command::new(lambert());
    command.args(endless.line()).env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    let tuning = command.spawn().unwrap();
    endless.wait();
    support::signal(tuning.id(), "-9");
    assert_eq!(code(tuning), None);
    endless.first_runs().iter().for_each(|run| support::wait_for_no_workers(run));
    endless.assert_ended();
    let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_second_tuning_in_the_same_folder_takes_over() {
    let endless = Endless::new();
    let first = start(&endless.line());
    endless.wait();
    let second = start(&endless.line());
    assert_eq!(code(first), Some(77));
    endless.wait();
    support::signal(second.id(), "-TERM");
    assert_eq!(code(second), Some(75));
    endless.assert_ended();
}

#[test]
fn a_killed_tuning_resumes_and_finds_the_best_run() {
    let place = TestDir::new();
    let (config, runs) = (config(&place, 60), place.path("runs"));
    let line = [
        "tune",
        "--config",
        &config,
        "--runs",
        &runs,
        "--grid",
        "optimizer.kind=\"lamb\",\"adamw\"",
        "--grid",
        "stage.0.learning_rate=1e-4,5e-3",
        "--trial",
        "stage.0.learning_rate=1e30 optimizer.kind=\"adamw\"",
        "--json",
    ];
    let mut tuning = start(&line);
    let begun = Instant::now();
    while !std::path::Path::new(&place.path("runs/tune.json")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(100), "no run has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    tuning.kill().unwrap();
    tuning.wait().unwrap();
    let again = support::run(&line);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.starts_with("5 runs, ") && !again.err.starts_with("5 runs, 5"), "{}", again.err);
    let results: Value = serde_json::from_str(&again.out).unwrap();
    let trials = results["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 5);
    let end =
        |name: &str| trials.iter().find(|trial| trial["name"] == name).unwrap()["end"].as_str().unwrap().to_owned();
    assert_eq!(end("learning_rate=1e30,kind=adamw"), "diverged");
    assert_eq!(end("kind=lamb,learning_rate=5e-3"), "finished");
    let best = trials
        .iter()
        .filter(|trial| trial["end"] == "finished")
        .min_by(|a, b| a["held_out"].as_f64().unwrap().total_cmp(&b["held_out"].as_f64().unwrap()))
        .unwrap();
    let table = std::fs::read_to_string(place.path("runs/tune.csv")).unwrap();
    assert!(table.lines().nth(1).unwrap().starts_with(&format!("\"{}\",", best["name"].as_str().unwrap())), "{table}");
    let svg = std::fs::read_to_string(place.path("runs/tune.svg")).unwrap();
    assert!(svg.contains("stage.0.learning_rate") && svg.contains("optimizer.kind"));
    // The configuration of the best run must reproduce the run.
    let best_config = place.path("runs/best.toml");
    let ended = support::Running::start(&best_config, &place.path("again")).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    support::assert_same_bits(&format!("{runs}/{}", best["name"].as_str().unwrap()), &place.path("again"));
    let third = support::run(&line);
    assert!(third.err.starts_with("5 runs, 0 to do"), "{}", third.err);
    // New runs with another criterion, or with another value of a key that is not tuned, must not be ranked with these
    // runs.
    let grid = ["tune", "--config", &config, "--runs", &runs, "--grid", "stage.0.learning_rate=3e-3", "--set"];
    for (set, differs) in
        [("evaluation.samples=50", "evaluation.samples: "), ("optimizer.beta2=0.9", "optimizer.beta2: ")]
    {
        let other = support::run(&[&grid[..], &[set]].concat());
        assert_eq!(other.code, 2, "{}", other.err);
        assert!(
            other.err.contains("has runs of another configuration") && other.err.contains(differs),
            "{}",
            other.err
        );
    }
    // A run that was removed is repeated.
    std::fs::remove_dir_all(format!("{runs}/{}", best["name"].as_str().unwrap())).unwrap();
    let remade = support::run(&line);
    assert!(remade.err.starts_with("5 runs, 1 to do"), "{}", remade.err);
    // Without the results table, finished runs and their losses are still found.
    std::fs::remove_file(place.path("runs/tune.json")).unwrap();
    let fourth = support::run(&line);
    assert!(fourth.err.starts_with("5 runs, 5 to do"), "{}", fourth.err);
    let losses = |text: &str| -> Vec<(String, Value, Value)> {
        let results: Value = serde_json::from_str(text).unwrap();
        let trial = |trial: &Value| (trial["name"].to_string(), trial["held_out"].clone(), trial["training"].clone());
        let mut losses: Vec<_> = results["trials"].as_array().unwrap().iter().map(trial).collect();
        losses.sort_by(|a, b| a.0.cmp(&b.0));
        losses
    };
    assert_eq!(losses(&fourth.out), losses(&again.out));
}

#[test]
fn the_configuration_file_may_be_edited_after_the_first_start() {
    let place = TestDir::new();
    let (config, runs) = (config(&place, 40), place.path("runs"));
    let tuning = start(&["tune", "--config", &config, "--runs", &runs, "--parallel", "1", "--grid", "run.seed=1,2"]);
    let begun = Instant::now();
    while !std::path::Path::new(&place.path("runs/seed=1/run.toml")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(100), "no run has started");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(&config, "no configuration any more").unwrap();
    assert_eq!(code(tuning), Some(0));
    let second = std::fs::read_to_string(place.path("runs/seed=2/run.toml")).unwrap();
    let first = std::fs::read_to_string(place.path("runs/seed=1/run.toml")).unwrap();
    assert_eq!(second.replace("seed = 2", "seed = 1"), first);
    // Another configuration is rejected even before a run has ended.
    std::fs::remove_file(place.path("runs/tune.json")).unwrap();
    let other = self::config(&place, 50);
    let refused = support::run(&["tune", "--config", &other, "--runs", &runs, "--grid", "run.seed=3"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("stage.0.steps"), "{}", refused.err);
}

#[test]
fn an_invalid_sweep_is_rejected_before_any_run() {
    let place = TestDir::new();
    let (config, runs) = (config(&place, 10), place.path("runs"));
    let refused = |more: &[&str], expected: &str| {
        let ran = support::run(&[&["tune", "--config", &config, "--runs", &runs], more].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
        assert!(!std::path::Path::new(&runs).join("tune.json").exists());
    };
    refused(&[], "nothing to tune");
    refused(&["--grid", "stage.0.learning_rate=1e-3,fast"], "invalid run learning_rate=fast");
    refused(&["--grid", "stage.0.lerning_rate=1e-3"], "lerning_rate");
    refused(&["--trial", ""], "expected KEY=VALUE");
    let beside = support::run(&["tune", "--config", &config, "--runs", &place.path(""), "--grid", "run.seed=1"]);
    assert_eq!(beside.code, 2, "{}", beside.err);
    assert!(beside.err.contains("tune.toml: `lambert tune` overwrites this file"), "{}", beside.err);
    refused(&["--grid", "objective.mask_probability=0.15,0.3"], "objective.mask_probability cannot be tuned");
    refused(&["--grid", "run.seed=1,2", "--set", "evaluation.data=\"\""], "evaluation.data is missing");
}
