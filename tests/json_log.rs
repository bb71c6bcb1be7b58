//! `--log json`: every line on standard error is a JSON object.

use std::process::Command;

use serde_json::Value;

use crate::support::{TestDir, done, lambert};

/// Runs `lambert`. Returns the exit code and the lines on standard error.
fn run(arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = Command::new(lambert()).args(arguments).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} of {log}"));
    (output.status.code(), log.lines().map(parse).collect())
}

/// Asserts that `lambert` ends with this error and exit code, which are in the last line.
fn assert_ends(arguments: &[&str], code: i32, message: &str) {
    let (found, lines) = run(arguments);
    assert_eq!(found, Some(code), "{lines:?}");
    let last = lines.last().unwrap();
    assert_eq!((&last["level"], &last["fields"]["exit_code"]), (&"ERROR".into(), &code.into()), "{last}");
    assert!(last["fields"]["message"].as_str().unwrap().contains(message), "{last}");
}

#[test]
fn lines_of_ranks_have_their_rank_and_host() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(9, 2), dir.path("run"));
    let (code, lines) = run(&["run", "--config", &config, "--run", &url, "--log", "json"]);
    assert_eq!(code, Some(0), "{lines:?}");
    let of_rank = lines.iter().find(|line| line["fields"]["rank"] == 0 && line["fields"]["host"].is_string());
    let of_rank = of_rank.unwrap_or_else(|| panic!("no line of rank 0 in {lines:?}"));
    assert!(!of_rank["fields"]["message"].as_str().unwrap().is_empty() && of_rank["timestamp"].is_string());
    let end = &lines.last().unwrap()["fields"]["message"];
    assert!(end.as_str().unwrap().starts_with("finished: step 9 of 9"), "{end}");
}

#[test]
fn errors_have_the_exit_code() {
    let dir = TestDir::new();
    let (missing, url) = (dir.path("missing.toml"), dir.path("run"));
    assert_ends(&["--log", "json", "run", "--config", &missing, "--run", &url], 2, "missing.toml");
    assert_ends(&["status", &url, "--log=json", "--quiet"], 2, "not a run");
    // The command line itself is invalid.
    assert_ends(&["run", "--nonsense", "--log", "json"], 2, "unexpected argument '--nonsense'");
}

/// `lambert eval` becomes the worker.
#[test]
fn the_worker_writes_json_too() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(3, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &url]);
    let (code, lines) = run(&["eval", &url, "--data", &dir.path("nowhere"), "--log", "json"]);
    assert!(code != Some(0) && lines.last().is_some_and(|line| line["level"] == "ERROR"), "{lines:?}");
}
