//! Values and Xid errors of GPUs in a run, with an emulated NVML.

use std::path::Path;

use lambert_control::{GpuRanges, ValueRange};
use serde_json::{Value, json};

use crate::prometheus::{scrape, start, target, wait_for};
use crate::support::nvml::{self, UUID};
use crate::support::{ENDLESS, Running, TestDir, done, read_json};
use crate::watch::Watch;

/// GPU of a rank in `status.json`.
fn gpu(run: &str, rank: usize) -> Value {
    read_json(run, "status.json")["ranks"][rank]["gpu"].clone()
}

fn range(min: f64, max: f64) -> Option<ValueRange> {
    Some(ValueRange { min, max })
}

/// Checks the outputs that show the values while the run trains.
fn check_values(dir: &TestDir, run: &str) {
    let expected = json!({ "index": 0, "uuid": UUID, "utilization": 0.97, "memory_used": 72_u64 << 30,
        "memory_total": 80_u64 << 30, "power": 620.5, "temperature": 62.0 });
    assert_eq!(gpu(run, 1), expected);
    assert_eq!(gpu(run, 0)["index"], 1);
    let text = done(&["status", run]);
    let line = "gpu          2 GPUs: 96-97% busy, 71.0-72.0/80.0 GiB, 610-620 W, 61-62 C";
    assert!(text.lines().any(|other| other == line), "{text}");
    let token = std::fs::read_to_string(dir.path("prometheus/prometheus.token")).unwrap();
    let (_, _, metrics) = scrape(&wait_for("the discovery file", || target(dir)), Some(token.trim()));
    let labels = format!("gpu=\"0\",uuid=\"{UUID}\"}}");
    let found = metrics.lines().find(|line| line.starts_with("lambert_gpu_power_watts{rank=\"1\",")).unwrap();
    assert!(found.ends_with(&format!("{labels} 620.5")), "{found}");
    let page = Watch::start(&[run], &[]).wait_for_steps();
    let shown = &page["runs"][0]["info"]["ranks"][1]["gpu"];
    assert_eq!(shown, "GPU 0: 97% busy, 72.0/80.0 GiB, 620 W, 62 C");
}

/// Checks the table of ranks on the page of `lambert watch` in a browser, after the Xid error of rank 1.
fn check_browser(run: &str) {
    let watch = Watch::start(&[run], &[]);
    watch.wait_for_steps();
    let Some(report) = watch.open_in_browser() else { return };
    let shown = |rank: usize| report["ranks"][rank]["GPU"].as_str().unwrap_or_else(|| panic!("{}", report["ranks"]));
    assert_eq!(shown(0), "GPU 1: 96% busy, 71.0/80.0 GiB, 610 W, 61 C");
    assert_eq!(shown(1), "GPU 0: 97% busy, 72.0/80.0 GiB, 620 W, 62 C; Xid 79");
}

/// Checks the report of the run, in whose last attempt there was no Xid error.
fn check_report(run: &str) {
    let [json, html, markdown] = ["json", "html", "markdown"].map(|format| done(&["report", run, "--format", format]));
    let facts: Value = serde_json::from_str(&json).unwrap();
    let gpu = &facts[0]["gpu"];
    assert_eq!(gpu["range"]["utilization"], json!({ "min": 0.96, "max": 0.97 }));
    let (least, most) = (gpu["mean"]["power"]["min"].as_f64().unwrap(), gpu["mean"]["power"]["max"].as_f64().unwrap());
    // At the start, only one of the ranks has reported its values.
    assert!((610.4..620.0).contains(&least) && (611.0..620.6).contains(&most), "{gpu}");
    for (name, range) in [
        ("GPU utilization", "96-97%"),
        ("GPU memory in use", "71.0-72.0/80.0 GiB"),
        ("GPU power", "610-620 W"),
        ("GPU temperature", "61-62 C"),
    ] {
        let row =
            |report: &str| report.lines().any(|line| line.contains(name) && line.contains(&format!("range {range}")));
        assert!(row(&markdown) && row(&html), "no {name:?} in {markdown}");
    }
    assert_eq!(facts[0].get("xids"), None);
    let xids = markdown.matches("Xid").count();
    assert_eq!(xids, 1, "only the cause of the failure: {markdown}");
}

#[test]
fn values_and_xid_errors_are_reported() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let mut running = start(&dir, ENDLESS, "127.0.0.1:0", &nvml::arguments(&nvml::build(&dir, &[])));
    running.wait_until(|| [0, 1].iter().all(|rank| gpu(&run, *rank).is_object()));
    let expected = GpuRanges {
        utilization: range(0.96, 0.97),
        memory_used: range((71_u64 << 30) as f64, (72_u64 << 30) as f64),
        memory_total: range((80_u64 << 30) as f64, (80_u64 << 30) as f64),
        power: range(610.5, 620.5),
        temperature: range(61.0, 62.0),
    };
    assert_eq!(running.latest().unwrap().gpu, Some(expected));
    check_values(&dir, &run);

    // GPU 0 falls off the bus, and its rank dies.
    nvml::cause_xid(&dir, 79);
    running.wait_until(|| gpu(&run, 1)["xids"] == json!([79]));
    let text = done(&["status", &run]);
    let xid = format!("GPU 0 ({UUID}) reported Xid 79 (GPU has fallen off the bus)");
    assert!(text.contains(&format!(" ago; {xid}")), "{text}");
    check_browser(&run);
    let host = read_json(&run, "status.json")["ranks"][1]["host"].as_str().unwrap().to_owned();
    let row = format!("| 1 | {host} | GPU 0 ({UUID}) | Xid 79 (GPU has fallen off the bus) |");
    let report = done(&["report", &run, "--format", "markdown"]);
    assert!(report.lines().any(|line| line == row), "{report}");
    running.kill_rank(1, "-9");
    running.wait_until(|| read_json(&run, "status.json")["attempt"] == 2 && gpu(&run, 1).is_object());
    assert_eq!(gpu(&run, 1).get("xids"), None, "an Xid error of the attempt before");
    done(&["stop", &run]);
    let ended = running.end();
    assert_eq!(ended.code, Some(76), "{}", ended.log);
    let warning = format!("rank 1: GPU 0 ({UUID}) on host {host}: Xid 79 (GPU has fallen off the bus)");
    assert_eq!(ended.log.matches(&warning).count(), 1, "{}", ended.log);
    assert!(ended.log.contains(&format!("killed by SIGKILL; its {xid}; restarting")), "{}", ended.log);
    let failure = read_json(&run, "status.json")["failures"][0]["cause"].clone();
    assert!(failure.as_str().unwrap().ends_with(&format!("killed by SIGKILL; its {xid}")), "{failure}");
    let stored = done(&["metrics", &run, "--format", "csv"]);
    assert!(stored.lines().next().unwrap().contains("gpu.power.max") && stored.contains(",620.5,"), "{stored}");
    check_report(&run);
}

#[test]
fn a_lost_gpu_is_a_failure_of_its_host() {
    let dir = TestDir::new();
    let run = dir.path("run");
    let more = nvml::arguments(&nvml::build(&dir, &[]));
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &run, &more.each_ref().map(String::as_str));
    running.wait_until(|| gpu(&run, 1).is_object() && Path::new(&run).join("checkpoints").exists());
    let devices = |attempt: u64| read_json(&run, &format!("devices/attempt-{attempt:04}.json"));
    let uuid = UUID.strip_prefix("GPU-").unwrap();
    let first = devices(1);
    assert_eq!(first[0]["gpu"]["pci_bus_id"], "0000:01:00.0");
    assert_eq!(first[1]["gpu"], json!({ "pci_bus_id": "0000:02:00.0", "uuid": uuid }));
    assert_eq!(first[1]["rank"], 1);

    // Without the GPU of rank 1, both ranks of the next attempt would use the other one.
    nvml::remove_gpu(&dir);
    running.kill_rank(1, "-9");
    let cause = || read_json(&run, "status.json")["failures"][1]["cause"].as_str().map(str::to_owned);
    let cause = wait_for("the failure of attempt 2", cause);
    nvml::return_gpu(&dir);
    let host = first[1]["host"].as_str().unwrap();
    let lost = format!(
        "host {host} has lost GPU 0000:02:00.0 (UUID {uuid}): attempt 1 used 2 there, and this attempt finds 1"
    );
    assert!(cause.contains(&lost), "{cause}");
    assert!(!Path::new(&run).join("devices/attempt-0002.json").exists());

    let attempt = || read_json(&run, "status.json")["attempt"].as_u64().unwrap();
    running.wait_until(|| attempt() > 2 && gpu(&run, 1).is_object());
    assert_eq!(devices(attempt()), first);
    done(&["stop", &run]);
    let ended = running.end();
    assert_eq!(ended.code, Some(76), "{}", ended.log);
    assert!(ended.log.contains(&format!("{lost}; ")), "{}", ended.log);
}

#[test]
fn errors_of_nvml_are_one_line_per_rank() {
    for (options, lines, cause) in [
        (
            Some(&["-DINIT_RESULT=9"][..]),
            2,
            "the GPU is not monitored: NVML call nvmlInit_v2 failed: Driver Not Loaded",
        ),
        (
            Some(&["-DREGISTER_RESULT=3", "-DUTILIZATION_RESULT=15"][..]),
            2,
            "GPU: its Xid errors are not reported: NVML",
        ),
        (
            Some(&["-DUTILIZATION_RESULT=15"][..]),
            2,
            "GPU: its utilization, memory, power and temperature are not reported: NVML",
        ),
        (None, 0, "GPU"),
    ] {
        let (dir, run) = (TestDir::new(), "run");
        let library = options.map_or_else(|| dir.path("missing.so"), |options| nvml::build(&dir, options));
        let more = nvml::arguments(&library);
        let ended = Running::start_with(&dir.config(40, 2), &dir.path(run), &more.each_ref().map(String::as_str)).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        let found: Vec<&str> = ended.log.lines().filter(|line| line.contains("GPU")).collect();
        assert!(found.len() == lines && found.iter().all(|line| line.contains(cause)), "{options:?}: {found:?}");
        assert!(ended.records.iter().all(|record| record.gpu.is_none()), "{options:?}");
    }
}
