//! Metrics for Prometheus: a real Prometheus scrapes a run, with the configuration and the alert rules of the
//! documentation.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{ENDLESS, Running, TestDir, done, nvml, read_json, wait_for_no_workers};

/// Timeout of waits, sufficient on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/prometheus");

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Settings of a run whose metrics are served at `address`.
fn settings(dir: &TestDir, address: &str) -> Vec<String> {
    let set = |key: &str, value: &str| format!("prometheus.{key}={value:?}");
    let values = [
        set("address", address),
        set("token_file", &dir.path("prometheus/prometheus.token")),
        set("discovery_file", &dir.path("prometheus/runs/run.json")),
    ];
    values.into_iter().flat_map(|value| ["--set".to_owned(), value]).collect()
}

/// Starts a run whose metrics are served at `address`, with additional arguments.
pub fn start(dir: &TestDir, steps: u64, address: &str, more: &[String]) -> Running {
    std::fs::create_dir_all(dir.path("prometheus/runs")).unwrap();
    let settings = settings(dir, address);
    let arguments: Vec<&str> = settings.iter().chain(more).map(String::as_str).collect();
    Running::start_with(&dir.config(steps, 2), &dir.path("run"), &arguments)
}

/// Address in the discovery file; `None` if it has none.
pub fn target(dir: &TestDir) -> Option<String> {
    let groups = std::fs::read(dir.path("prometheus/runs/run.json")).ok()?;
    let groups: Value = serde_json::from_slice(&groups).unwrap();
    groups[0]["targets"][0].as_str().map(str::to_owned)
}

/// Status code, content type and text of the metrics at `target`.
pub fn scrape(target: &str, token: Option<&str>) -> (u16, String, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent.get(format!("http://{target}/metrics"));
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut answer = request.call().unwrap();
    let kind = answer.headers().get("content-type").unwrap().to_str().unwrap().to_owned();
    (answer.status().as_u16(), kind, answer.body_mut().read_to_string().unwrap())
}

/// A Prometheus with the configuration of the documentation, which scrapes and evaluates the alerts every second.
struct Prometheus {
    child: Child,
    url: String,
}

impl Prometheus {
    fn start(dir: &TestDir) -> Self {
        let config = std::fs::read_to_string(Path::new(DOCS).join("prometheus.yml")).unwrap().replace("15s", "1s");
        let config = format!("global: {{evaluation_interval: 1s}}\n{config}");
        let config = dir.file("prometheus/prometheus.yml", config);
        std::fs::copy(Path::new(DOCS).join("alerts.yml"), dir.path("prometheus/alerts.yml")).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={config}"))
            .arg(format!("--storage.tsdb.path={}", dir.path("prometheus/data")))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, url: format!("http://{address}/api/v1") }
    }

    /// Results of an expression; empty before Prometheus has started.
    fn query(&self, expression: &str) -> Vec<Value> {
        list(ureq::get(format!("{}/query", self.url)).query("query", expression), "result")
    }

    /// Alerts with this name that fire.
    fn firing(&self, name: &str) -> Vec<Value> {
        let is_firing = |alert: &Value| alert["labels"]["alertname"] == name && alert["state"] == "firing";
        let request = ureq::get(format!("{}/alerts", self.url));
        list(request, "alerts").into_iter().filter(is_firing).collect()
    }
}

/// The list `name` in an answer of Prometheus; empty if it does not answer.
fn list(request: ureq::RequestBuilder<ureq::typestate::WithoutBody>, name: &str) -> Vec<Value> {
    let Ok(mut answer) = request.call() else { return Vec::new() };
    let answer: Value = answer.body_mut().read_json().unwrap();
    answer["data"][name].as_array().unwrap().clone()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The expressions of the alert rules, without their comparisons.
fn expressions() -> Vec<String> {
    let rules = std::fs::read_to_string(Path::new(DOCS).join("alerts.yml")).unwrap();
    let compared = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    compared.map(|line| line.rsplit_once(['<', '>']).unwrap().0.trim().to_owned()).collect()
}

#[test]
fn a_real_prometheus_scrapes_a_run() {
    let dir = TestDir::new();
    let mut running = start(&dir, ENDLESS, "127.0.0.1:0", &nvml::arguments(&nvml::build(&dir, &[])));
    running.reach(10);
    let address = wait_for("the discovery file", || target(&dir));
    let token = std::fs::read_to_string(dir.path("prometheus/prometheus.token")).unwrap();
    for wrong in [None, Some("wrong"), Some("")] {
        let (code, _, text) = scrape(&address, wrong);
        assert!(code == 401 && !text.contains("lambert_"), "{code} {text}");
    }
    let (code, kind, text) = scrape(&address, Some(token.trim()));
    assert_eq!((code, kind.as_str()), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(text.contains("lambert_state{state=\"training\"} 1.0"), "{text}");
    // The coordinator may not have a record of a step yet.
    let peak = wait_for("the peak memory", || {
        let (_, _, text) = scrape(&address, Some(token.trim()));
        text.lines().find_map(|line| line.strip_prefix("lambert_peak_memory_bytes ")?.parse::<f64>().ok())
    });
    assert!(peak > 50e6, "{peak}");

    if Command::new("prometheus").arg("--version").output().is_err() {
        eprintln!("SKIPPED: prometheus is missing");
        return;
    }
    let rules = PathBuf::from(DOCS).join("alerts.yml");
    assert!(Command::new("promtool").arg("check").arg("rules").arg(rules).status().unwrap().success());
    let prometheus = Prometheus::start(&dir);
    nvml::cause_xid(&dir, 79);
    let expressions = expressions();
    assert_eq!(expressions.len(), 9);
    for expression in expressions {
        let found = wait_for(&expression, || {
            running.reach_now(1);
            let found = prometheus.query(&expression);
            (!found.is_empty()).then_some(found)
        });
        assert_eq!(found[0]["metric"]["run"], "run", "{expression}: {found:?}");
    }
    assert_eq!(prometheus.query("up{job=\"lambert\"}")[0]["value"][1], "1");
    let alert = wait_for("the alert of the Xid error", || prometheus.firing("LambertXid").pop());
    let host = read_json(&dir.path("run"), "status.json")["ranks"][1]["host"].as_str().unwrap().to_owned();
    let summary = format!("run: GPU 0 ({}) on host {host}: Xid 79", nvml::UUID);
    assert_eq!(alert["annotations"]["summary"], summary.as_str());
    done(&["stop", &dir.path("run")]);
    assert_eq!(running.end().code, Some(76));
    assert_eq!(target(&dir), None);
}

#[test]
fn the_discovery_file_follows_the_coordinator() {
    let dir = TestDir::new();
    let mut running = start(&dir, 60, "127.0.0.1:0", &[]);
    let first = wait_for("the discovery file", || target(&dir));
    running.reach(10);
    running.kill_coordinator("-9");
    drop(running);
    wait_for_no_workers(&dir.path("run"));
    assert_eq!(target(&dir), Some(first.clone()));
    // The port of the first coordinator is in use.
    let _other = TcpListener::bind(&first).unwrap();
    let running = start(&dir, 60, "127.0.0.1:0", &[]);
    wait_for("another address", || target(&dir).filter(|second| *second != first));
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(target(&dir), None);
}

#[test]
fn a_port_in_use_does_not_fail_the_run() {
    let dir = TestDir::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let ended = start(&dir, 7, &address, &[]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let warning = format!("metrics are not served at prometheus.address: cannot listen on {address}");
    assert!(ended.log.contains(&warning), "{}", ended.log);
}

/// A coordinator takes the run over while the suspended one before it still has the ports. When that one has ended, the
/// successor serves the metrics and the page, and its files stay.
#[test]
fn a_successor_serves_metrics_and_page_once_the_ports_are_free() {
    let dir = TestDir::new();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (address, page_port, url_file) = (free().to_string(), free().port(), dir.path("demo.url"));
    let sets = [format!("watch.url_file={url_file:?}"), format!("watch.port={page_port}")];
    let page: Vec<String> = sets.into_iter().flat_map(|value| ["--set".to_owned(), value]).collect();
    let mut first = start(&dir, ENDLESS, &address, &page);
    first.reach(3);
    let read_url = || std::fs::read_to_string(&url_file).ok();
    let first_url = wait_for("the URL of the first coordinator", read_url);
    wait_for("the discovery file", || target(&dir));
    first.kill_coordinator("-STOP");
    let mut second = start(&dir, ENDLESS, &address, &page);
    second.reach(3);
    first.kill_coordinator("-CONT");
    let ended = first.end();
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    let url = wait_for("the URL of the successor", || read_url().filter(|url| *url != first_url));
    let found = wait_for("the successor's metrics", || target(&dir));
    let token = std::fs::read_to_string(dir.path("prometheus/prometheus.token")).unwrap();
    assert_eq!((found.as_str(), scrape(&found, Some(token.trim())).0), (address.as_str(), 200));
    assert_eq!(ureq::get(url.lines().next().unwrap()).call().unwrap().status().as_u16(), 200);
    done(&["stop", &dir.path("run")]);
    let ended = second.end();
    assert_eq!((ended.code, target(&dir)), (Some(76), None), "{}", ended.log);
    for server in ["metrics are not served", "the page of the run is not served"] {
        assert_eq!(ended.log.matches(server).count(), 1, "{}", ended.log);
    }
    assert!(!Path::new(&url_file).exists());
}
