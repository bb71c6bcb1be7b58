//! `lambert logs` and `lambert status` of running and finished runs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{self, ENDLESS, Running, TestDir, copy, done, lambert, observed, read_json, run};

/// A command that follows a run, with its standard output.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(lambert()).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().for_each(|line| drop(sender.send(line.unwrap()))));
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    /// Waits for its end and returns the remaining lines.
    fn end(mut self) -> Vec<String> {
        let lines = self.lines.iter().collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

#[test]
fn a_run_is_followed_through_a_restart() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut running = Running::start(&dir.config(ENDLESS, 2), &run);
    running.reach(10);
    let start = |arguments: &[&str]| Follower::start(&[arguments, &[&run, "--follow"]].concat());
    let (all, one) = (start(&["logs"]), start(&["logs", "--rank=1"]));
    let (status, json) = (start(&["status"]), start(&["status", "--json"]));
    let records = start(&["metrics"]);
    assert!(all.line().starts_with("rank 0: ") && !one.line().starts_with("rank"));
    assert!(status.line().contains("attempt 1") && json.line().contains("\"attempt\":1"));
    running.kill_rank(1, "-9");
    running.wait_until(|| read_json(&run, "status.json")["attempt"] == 2);
    done(&["stop", &run]);
    let ended = running.end();
    assert_eq!(ended.code, Some(76), "{}", ended.log);

    let all = all.end();
    assert!(all.iter().any(|line| line.starts_with("rank 1: ")), "{all:?}");
    assert!(!one.end().is_empty(), "the second attempt was not shown");
    let mut valid = Vec::new();
    for line in records.end() {
        let line: Value = serde_json::from_str(&line).unwrap();
        let step = line["step"].as_u64().unwrap();
        match line["event"] == "undo" {
            true => valid.retain(|kept| *kept <= step),
            false => valid.push(step),
        }
    }
    assert!(valid.iter().copied().eq(1..=valid.len() as u64), "{valid:?}");
    let lines = done(&["metrics", &run]);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(valid.len(), lines.filter(|line| line["undone"] == false).count());
    let status = status.end();
    assert!(status.last().unwrap().starts_with("stopped: step "), "{status:?}");
    assert!(status.last().unwrap().contains("attempt 2 (1 restart"), "{status:?}");
    let last: Value = serde_json::from_str(json.end().last().unwrap()).unwrap();
    assert_eq!((&last["status"]["state"], &last["coordinator"]), (&json!("stopped"), &json!("over")));
}

#[test]
fn a_terminal_shows_a_screen() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: script (util-linux) is missing");
        return;
    }
    let command = format!("{} status {} --follow", lambert().display(), observed::run().display());
    let shown = Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("\u{1b}[H\u{1b}[Jrun          "), "{shown:?}");
    assert!(shown.contains("finished") && shown.contains("checkpoints  step-"), "{shown:?}");
}

/// A container has the name of its host, but other process IDs.
#[test]
fn a_run_in_another_pid_namespace_is_alive() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: unshare (util-linux) as root is missing");
        return;
    }
    let dir = TestDir::new();
    let (config, run) = (dir.config(ENDLESS, 1), dir.path("run"));
    let mut contained = Command::new(unshare[0]);
    contained.args(&unshare[1..]).arg(lambert()).args(["run", "--config", &config, "--run", &run]);
    let mut contained = contained.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_training =
        || std::fs::read_to_string(dir.path("run/status.json")).unwrap_or_default().contains("\"training\"");
    let start = Instant::now();
    while !is_training() {
        assert!(start.elapsed() < Duration::from_secs(60), "no step");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status: Value = serde_json::from_str(&done(&["status", &run, "--json"])).unwrap();
    assert_eq!(status["coordinator"], "alive", "{status}");
    done(&["stop", &run]);
    assert!(contained.wait().is_ok());
    assert_eq!(read_json(&run, "status.json")["state"], "stopped");
}

/// The clock of a host that has died was ahead. Its last status must not look recent until this time has come.
#[test]
fn a_status_from_the_future_is_not_recent() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(2, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &url]);
    let mut status = read_json(&url, "status.json");
    status["state"] = json!("training");
    status["coordinator"]["host"] = json!("another-host");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    for (age, liveness) in
        [(1.0, "alive"), (-20.0, "alive"), (100.0, "unknown"), (-100.0, "unknown"), (-1e7, "unknown")]
    {
        status["updated"] = json!(now - age);
        dir.file("run/status.json", status.to_string());
        let shown: Value = serde_json::from_str(&done(&["status", &url, "--json"])).unwrap();
        assert_eq!(shown["coordinator"], liveness, "{age}");
    }
}

#[test]
fn the_logs_of_every_attempt_are_shown() {
    let run = observed::run().to_str().unwrap();
    let newest = done(&["logs", run]);
    assert!(newest.lines().any(|line| line.starts_with("rank 0: ")), "{newest}");
    assert!(newest.lines().any(|line| line.starts_with("rank 1: ")), "{newest}");
    assert!(!done(&["logs", run, "--rank", "1", "--attempt", "1"]).contains("rank 1: "));
    let unknown = support::run(&["logs", run, "--rank", "7"]);
    assert!(
        unknown.code == 2 && unknown.err.contains("--rank 7: ") && unknown.err.contains("has ranks 0 and 1"),
        "{}",
        unknown.err
    );
}

/// The records and checkpoints of a run whose status is damaged are still shown.
#[test]
fn a_damaged_status_hides_nothing_else() {
    let dir = TestDir::new();
    let copied = dir.path("copy");
    copy(observed::run(), Path::new(&copied));
    let before = done(&["report", &copied, "--format", "json"]);
    dir.file("copy/status.json", "{\"state\": ");
    let shown = run(&["status", &copied]);
    assert!(shown.code == 0 && shown.err.contains("status.json is not a run status"), "{}", shown.err);
    assert!(shown.out.contains("status.json is damaged") && shown.out.contains("checkpoints  step-"), "{}", shown.out);
    let shown: Value = serde_json::from_str(&done(&["status", &copied, "--json"])).unwrap();
    assert!(shown["status"].is_null() && shown["error"].as_str().unwrap().contains("is not a run status"), "{shown}");
    let report = run(&["report", &copied, "--format", "json"]);
    assert!(report.code == 0 && report.err.contains("status.json is not a run status"), "{}", report.err);
    let [before, now]: [Value; 2] = [before, report.out].map(|text| serde_json::from_str(&text).unwrap());
    for key in ["name", "steps", "losses", "held_out", "checkpoint"] {
        assert_eq!(now[0][key], before[0][key], "{key}");
    }
}

/// A copy of the observed run whose status names `folder` and hosts of its ranks.
fn logs_at(dir: &TestDir, folder: Option<&str>, hosts: [&str; 2]) -> String {
    let copied = dir.path("copy");
    copy(observed::run(), Path::new(&copied));
    let mut status = read_json(&copied, "status.json");
    status["logs"] = json!(folder);
    for (rank, host) in hosts.iter().enumerate() {
        status["ranks"][rank]["host"] = json!(host);
    }
    dir.file("copy/status.json", status.to_string());
    copied
}

#[test]
fn logs_on_another_host_are_named() {
    let dir = TestDir::new();
    let folder = dir.path("logs/run-00000000/attempt-000003");
    let elsewhere = logs_at(&dir, Some(&folder), ["node7", "node8"]);
    for follow in [&["--follow"][..], &[]] {
        let refused = run(&[&["logs", &elsewhere], follow].concat());
        assert!(refused.code == 1 && refused.err.contains("logs not on this host ("), "{}", refused.err);
        let hosts = "): rank 0 on host node7, rank 1 on host node8; run `lambert logs` on those hosts";
        assert!(refused.err.contains(&format!("{hosts} (folder {folder})")), "{}", refused.err);
    }
    dir.file("logs/run-00000000/attempt-000003/rank-00000.log", "one\ntwo");
    let shown = run(&["logs", &elsewhere]);
    assert_eq!((shown.code, shown.out.as_str()), (0, "rank 0: one\nrank 0: two\n"));
    assert!(shown.err.contains("rank 1 on host node8") && !shown.err.contains("node7"), "{}", shown.err);
    let missing = run(&["logs", &elsewhere, "--attempt", "2"]);
    assert!(missing.code == 1 && missing.err.contains("attempt-000002 not found on this host"), "{}", missing.err);
    let disabled = run(&["logs", &logs_at(&dir, None, ["node7", "node8"])]);
    assert!(disabled.code == 1 && disabled.err.contains("cluster.log_folder is \"none\""), "{}", disabled.err);
}

#[test]
fn the_runs_of_a_folder_are_listed() {
    let dir = TestDir::new();
    copy(observed::run(), Path::new(&dir.path("runs/trained")));
    dir.file("runs/new/run.toml", "");
    dir.file("runs/notes/readme.txt", "");
    let table = done(&["status", &dir.path("runs")]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..3], ["new", "not", "started"]);
    assert_eq!(rows[2][..3], ["trained", "finished", "90/90"]);
    assert_eq!(rows.len(), 3, "{table}");
    let lines = done(&["status", &dir.path("runs"), "--json"]);
    let trained: Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
    let status = read_json(&dir.path("runs/trained"), "status.json");
    for key in ["state", "step", "steps", "samples_per_second", "updated"] {
        assert_eq!(trained[key], status[key], "{key}");
    }
    assert_eq!(trained["loss"], status["record"]["loss"]);
    assert_eq!(run(&["status", &dir.path("runs"), "--follow"]).code, 2);
    assert_eq!(run(&["status", &dir.path("runs/notes")]).code, 2);
}
