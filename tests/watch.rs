//! `lambert watch` of the observed run: requests to the store, and the page in a real browser.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::s3_server::{BUCKET, Server};
use crate::support::{self, ENDLESS, Running, TestDir, copy, done, observed, signal};

/// Versions of tests/setup.sh.
const MODULES: &str = "browser-playwright-1.49.1-axe-4.10.2";

/// Script that opens the page in a browser and reports on it.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/page.mjs");

/// A server of the page.
pub struct Watch {
    program: Child,
    url: String,
    hint: String,
}

impl Watch {
    pub fn start(arguments: &[&str], environment: &[(&'static str, String)]) -> Self {
        let mut command = Command::new(support::lambert());
        command.arg("watch").args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        Self::start_command(command)
    }

    fn start_command(mut command: Command) -> Self {
        let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let [url, hint] = std::array::from_fn(|_| lines.next().unwrap().unwrap());
        Self { program, url, hint }
    }

    fn port(&self) -> &str {
        self.url.strip_prefix("http://127.0.0.1:").unwrap().split('/').next().unwrap()
    }

    fn data(&self) -> Value {
        let url = self.url.replace("/?", "/data?");
        serde_json::from_str(&ureq::get(&url).call().unwrap().into_body().read_to_string().unwrap()).unwrap()
    }

    /// Waits until the first run has steps.
    pub fn wait_for_steps(&self) -> Value {
        let start = Instant::now();
        loop {
            let data = self.data();
            let steps = data["runs"][0]["series"]["columns"]["step"].as_array().map_or(0, Vec::len);
            if steps > 0 {
                return data;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no steps: {data}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Opens the page in a browser. Checks it and returns the report of tests/browser/page.mjs. `None` without a browser.
    pub fn open_in_browser(&self) -> Option<Value> {
        let modules = browser_modules()?;
        let output = Command::new("node").args([PAGE, &modules, &self.url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for nothing in ["/console", "/violations", "/foreign", "/axe/light", "/axe/dark"] {
            assert_eq!(report.pointer(nothing), Some(&Value::Array(vec![])), "{nothing}");
        }
        Some(report)
    }

    /// Interrupts the program, which exits with code 0.
    fn end(mut self) {
        signal(self.program.id(), "-INT");
        assert_eq!(self.program.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn two_watchers_show_the_observed_run() {
    let run = observed::run().to_str().unwrap();
    let watchers = [Watch::start(&[run], &[]), Watch::start(&[run], &[])];
    for watch in &watchers {
        let hint = format!("from another machine: ssh -L {0}:127.0.0.1:{0} ", watch.port());
        assert!(watch.hint.starts_with(&hint), "{}", watch.hint);
        let data = watch.wait_for_steps();
        let shown = &data["runs"][0];
        let columns = &shown["series"]["columns"];
        let last = |name: &str| columns[name].as_array().unwrap().last().unwrap().as_f64().unwrap();
        assert_eq!((last("step"), last("samples")), (90.0, 90.0 * 16.0));
        assert!(last("flops") > 1e9 && last("hours") > 0.0 && last("loss") < last("total"), "{columns}");
        let names: Vec<_> = shown["stages"].as_array().unwrap().iter().map(|stage| stage["name"].clone()).collect();
        assert_eq!(names, ["short", "deep"]);
        let kinds = |kind: &str| shown["marks"].as_array().unwrap().iter().filter(|mark| mark["kind"] == kind).count();
        for kind in ["restart", "rollback", "skipped", "growth"] {
            assert_eq!(kinds(kind), 1, "{kind}: {}", shown["marks"]);
        }
        assert!(kinds("checkpoint") > 10 && !shown["undone"]["step"].as_array().unwrap().is_empty());
        assert_eq!(shown["evaluations"]["columns"]["step"].as_array().unwrap().len(), 9);
    }
    // A port in use.
    let second = support::run(&["watch", run, "--port", watchers[0].port()]);
    assert_eq!(second.code, 2);
    assert!(second.err.contains("is in use: choose another port"), "{}", second.err);
    watchers.into_iter().for_each(Watch::end);
    let missing = support::run(&["watch", "/nowhere"]);
    assert!(missing.code == 2 && missing.err.contains("is not a run"), "{}", missing.err);
}

/// Under nohup, the page must outlive the terminal.
#[test]
fn an_ignored_sighup_does_not_end_the_page() {
    let line = format!("trap '' HUP; exec {} watch {}", support::lambert().display(), observed::run().display());
    let mut command = Command::new("sh");
    command.args(["-c", &line]);
    let watch = Watch::start_command(command);
    signal(watch.program.id(), "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    watch.wait_for_steps();
    watch.end();
}

#[test]
fn a_refresh_takes_three_requests_and_a_vanished_run_stays() {
    let dir = TestDir::new();
    let folder = PathBuf::from(dir.path("s3")).join(BUCKET).join("run");
    copy(observed::run(), &folder);
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let watch = Watch::start(&[&format!("s3://{BUCKET}/run")], &server.environment());
    watch.wait_for_steps();
    server.requests();
    // Two refreshes or more.
    std::thread::sleep(Duration::from_secs(8));
    let requests = server.requests();
    let statuses = requests.iter().filter(|request| request.contains("status.json")).count();
    assert!(statuses >= 2 && requests.len() <= 3 * statuses + 2, "{statuses} refreshes: {requests:#?}");
    let before = watch.data();
    std::fs::rename(&folder, dir.path("gone")).unwrap();
    let start = Instant::now();
    loop {
        let data = watch.data();
        assert_eq!(data["runs"][0]["series"], before["runs"][0]["series"]);
        let notes = data["runs"][0]["info"]["notes"].to_string();
        if notes.contains("gone; showing the last data") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no note: {notes}");
        std::thread::sleep(Duration::from_millis(200));
    }
    watch.end();
}

/// Folder with playwright-core and axe-core; `None` if that, the browser or node is missing.
fn browser_modules() -> Option<String> {
    let cache = std::env::var("XDG_CACHE_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cache"));
    let modules = cache.unwrap_or_default() + "/lambert/" + MODULES;
    let has_browser = Path::new("/usr/bin/chromium").exists() || std::env::var_os("CHROMIUM").is_some();
    let has_node = Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if !(Path::new(&modules).exists() && has_browser && has_node) {
        eprintln!("SKIPPED: the page in a browser needs node, chromium and {modules}; tests/setup.sh installs them");
        return None;
    }
    Some(modules)
}

#[test]
fn the_page_works_in_a_browser() {
    let dir = TestDir::new();
    let hostile = dir.path("<script>alert(1)<");
    copy(observed::run(), Path::new(&hostile));
    let status = std::fs::read_to_string(format!("{hostile}/status.json")).unwrap();
    let name = serde_json::from_str::<Value>(&status).unwrap()["name"].to_string();
    let renamed = status.replacen(&name, "\"<script>alert(1)</script><img src=x onerror=alert(2)>\"", 1);
    std::fs::write(format!("{hostile}/status.json"), renamed).unwrap();
    let watch = Watch::start(&[observed::run().to_str().unwrap(), &hostile], &[]);
    watch.wait_for_steps();
    let Some(report) = watch.open_in_browser() else { return };
    for chart in report["charts"].as_array().unwrap() {
        assert!(chart["points"] == 90 && chart["colored"].as_u64() > Some(200), "{chart}");
    }
    let count = |list: &str| report[list].as_array().unwrap().len();
    assert_eq!((count("charts"), count("tables"), count("axes")), (8, 8, 5), "{report}");
    for table in report["tables"].as_array().unwrap() {
        // The stacked chart shows one run.
        let rows = if table["id"] == "table-phases" { 90 } else { 180 };
        assert!(table["expanded"] == "true" && table["visible"] == true && table["rows"] == rows, "{table}");
    }
    assert!(report["cursor"]["before"] != report["cursor"]["after"], "{}", report["cursor"]);
    let runs = report["runs"].as_str().unwrap();
    assert!(runs.contains("<script>alert(1)</script><img src=x onerror=alert(2)>"), "{runs}");
    assert_eq!((&report["injected"], &report["ranks"]), (&Value::from(0), &Value::Array(vec![])));
    assert!(!report["address"].as_str().unwrap().contains("token"), "{}", report["address"]);
    println!("first paint after {} ms", report["firstPaintMs"]);
    watch.end();
}

#[test]
fn the_page_follows_a_run_through_a_restart() {
    let Some(modules) = browser_modules() else { return };
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut running = Running::start(&dir.config(ENDLESS, 2), &run);
    running.reach(10);
    let watch = Watch::start(&[&run], &[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/live.mjs");
    let node = Command::new("node").args([script, &modules, &watch.url]).stdout(Stdio::piped()).spawn();
    let mut node = node.unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().expect("the page shows no steps").unwrap(), "open");
    running.kill_rank(1, "-9");
    let report: Value = serde_json::from_str(&lines.next().expect("the page shows no restart").unwrap()).unwrap();
    assert!(node.wait().unwrap().success());
    assert!(report["last"].as_u64() > report["first"].as_u64(), "{report}");
    assert!(report["goodput"].as_str().unwrap().contains("infrastructure recovery from disruption"), "{report}");
    assert_eq!((&report["ranks"], &report["isTheSamePage"]), (&Value::from(2), &Value::Bool(true)));
    println!("sizes of the answers: {}", report["sizes"]);
    let sizes = report["sizes"].as_array().unwrap();
    assert!(sizes.len() >= 2 && sizes.iter().all(|size| size.as_u64() < Some(200_000)), "{sizes:?}");
    done(&["stop", &run]);
    assert_eq!(running.end().code, Some(76));
    watch.end();
}
