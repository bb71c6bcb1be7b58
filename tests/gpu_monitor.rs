//! Values and Xid errors of GPUs in a run, with an emulated NVML (tests/support/nvml.c) in place of the library of the
//! driver.

use std::path::Path;
use std::process::Command;

use lambert_control::{GpuRanges, ValueRange};
use serde_json::{Value, json};

use crate::prometheus::{scrape, settings, target, wait_for};
use crate::support::{ENDLESS, Running, TestDir, done, read_json};
use crate::watch::Watch;

/// UUID of the GPU on bus 2. Rank 1 uses this GPU, which has the index 0 in NVML.
const UUID: &str = "GPU-00000000-0000-0000-0000-000000000002";

/// Compiles the emulated library with `options`. Returns its path.
fn nvml(dir: &TestDir, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml.c");
    let library = dir.path("libnvidia-ml.so.1");
    let mut compiler = Command::new("cc");
    let built = compiler.args(["-shared", "-fPIC", "-o", &library]).args(options).arg(source).status();
    assert!(built.unwrap().success());
    library
}

/// GPU of a rank in `status.json`.
fn gpu(run: &str, rank: usize) -> Value {
    read_json(run, "status.json")["ranks"][rank]["gpu"].clone()
}

fn range(min: f64, max: f64) -> Option<ValueRange> {
    Some(ValueRange { min, max })
}

/// Starts a run with the emulated library, which also serves metrics.
fn start(dir: &TestDir, run: &str, library: &str) -> Running {
    std::fs::create_dir_all(dir.path("prometheus/runs")).unwrap();
    let (library, more) = (format!("test.gpu={library:?}"), settings(dir, "127.0.0.1:0"));
    let more: Vec<&str> = ["--set", &library].into_iter().chain(more.iter().map(String::as_str)).collect();
    Running::start_with(&dir.config(ENDLESS, 2), run, &more)
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

#[test]
fn values_and_xid_errors_are_reported() {
    let (dir, library) = (TestDir::new(), "libnvidia-ml.so.1");
    let run = dir.path("run");
    let mut running = start(&dir, &run, &nvml(&dir, &[]));
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
    dir.file(&format!("{library}.xid-2"), "79");
    running.wait_until(|| gpu(&run, 1)["xids"] == json!([79]));
    let text = done(&["status", &run]);
    let xid = format!("GPU 0 ({UUID}) reported Xid 79 (GPU has fallen off the bus)");
    assert!(text.contains(&format!(" ago; {xid}")), "{text}");
    running.kill_rank(1, "-9");
    running.wait_until(|| read_json(&run, "status.json")["attempt"] == 2 && gpu(&run, 1).is_object());
    assert_eq!(gpu(&run, 1).get("xids"), None, "an Xid error of the attempt before");
    done(&["stop", &run]);
    let ended = running.end();
    assert_eq!(ended.code, Some(76), "{}", ended.log);
    let host = read_json(&run, "status.json")["ranks"][1]["host"].as_str().unwrap().to_owned();
    let warning = format!("rank 1: GPU 0 ({UUID}) on host {host}: Xid 79 (GPU has fallen off the bus)");
    assert_eq!(ended.log.matches(&warning).count(), 1, "{}", ended.log);
    assert!(ended.log.contains(&format!("killed by SIGKILL; its {xid}; restarting")), "{}", ended.log);
    let failure = read_json(&run, "status.json")["failures"][0]["cause"].clone();
    assert!(failure.as_str().unwrap().ends_with(&format!("killed by SIGKILL; its {xid}")), "{failure}");
    let stored = done(&["metrics", &run, "--format", "csv"]);
    assert!(stored.lines().next().unwrap().contains("gpu.power.max") && stored.contains(",620.5,"), "{stored}");
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
        (Some(&["-DUTILIZATION_RESULT=15"][..]), 2, "GPU: its values are not reported: NVML"),
        (None, 0, "GPU"),
    ] {
        let (dir, run) = (TestDir::new(), "run");
        let library = options.map_or_else(|| dir.path("missing.so"), |options| nvml(&dir, options));
        let more = ["--set", &format!("test.gpu={library:?}")];
        let ended = Running::start_with(&dir.config(40, 2), &dir.path(run), &more).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        let found: Vec<&str> = ended.log.lines().filter(|line| line.contains("GPU")).collect();
        assert!(found.len() == lines && found.iter().all(|line| line.contains(cause)), "{options:?}: {found:?}");
        assert!(ended.records.iter().all(|record| record.gpu.is_none()), "{options:?}");
    }
}
