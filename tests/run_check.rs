//! `lambert run --check`: reports every error at once, and starts and writes nothing.

use std::path::Path;

use crate::support::{CommandOutput, Running, TestDir, assert_accepted, assert_refused, done, run, tree, with_program};

/// Checks a run that does not exist yet.
fn check(dir: &TestDir, more: &[&str]) -> CommandOutput {
    let (config, url) = (dir.config(7, 2), dir.path("new"));
    let checked = run(&[&["run", "--check", "--config", &config, "--run", &url], more].concat());
    assert!(!Path::new(&url).exists(), "--check created the run");
    checked
}

#[test]
fn a_valid_run_passes_and_is_not_created() {
    let dir = TestDir::new();
    let checked = check(&dir, &[]);
    assert_eq!(checked.code, 0, "{}", checked.err);
    for text in ["total: 7 steps", "lambert-worker ", "all checks passed; nothing was started or written"] {
        assert!(checked.out.contains(text), "no {text:?} in {}", checked.out);
    }
    assert!(!checked.err.contains("attempt 1"), "{}", checked.err);
    let checked = check(&dir, &["--set", "notify.command=[\"/none/notify\"]"]);
    let warning = "warning: notify.command: /none/notify is not an executable file";
    assert!(checked.code == 0 && checked.out.contains(warning), "{} {}", checked.out, checked.err);
}

#[test]
fn all_errors_are_reported_at_once() {
    let dir = TestDir::new();
    let checked = check(&dir, &["--set", "model.heads=3", "--set", "cluster.hosts=[\"no-such-host.invalid:2\"]"]);
    assert_eq!(checked.code, 2, "{}", checked.err);
    for key in ["model.heads", "cluster.hosts: cannot resolve no-such-host.invalid"] {
        assert!(checked.err.contains(key), "no {key:?} in {}", checked.err);
    }
}

#[test]
fn a_stored_run_is_compared_and_stays_unchanged() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(7, 2), dir.path("run"));
    let trained = Running::start(&config, &url).end();
    assert_eq!(trained.code, Some(0), "{}", trained.log);
    let before = tree(Path::new(&url));
    done(&["run", "--check", "--run", &url]);
    let changed = run(&["run", "--check", "--config", &config, "--run", &url, "--set", "model.dropout=0.2"]);
    assert_eq!(changed.code, 2, "{}", changed.err);
    assert!(changed.err.contains("model.dropout: 0.1 in the run, 0.2 now"), "{}", changed.err);
    assert!(changed.err.contains("(`lambert tune`: another --runs)"), "{}", changed.err);
    let unknown = run(&["run", "--check", "--run", &url, "--allow-change", "model.hiden"]);
    assert!(
        unknown.code == 2 && unknown.err.contains("--allow-change model.hiden: no key or section"),
        "{}",
        unknown.err
    );
    assert_eq!(tree(Path::new(&url)), before);
}

#[test]
fn large_numbers_pass_the_check_or_are_errors() {
    let dir = TestDir::new();
    let config = dir.config(7, 1);
    let most = "must be at most 5256000 (ten years)";
    assert_refused(
        &dir,
        &config,
        &[
            ("checkpoint.give_up_minutes=1e300", most),
            ("checkpoint.every_minutes=1e308", most),
            ("cluster.restart.window_minutes=1e18", most),
            ("cluster.limits.coordinator_seconds=1e300", "must be at most 315360000 (ten years)"),
            ("notify.timeout_seconds=1e9", "must be at most 315360000 (ten years)"),
            ("optimizer.eps=1e-46", "must be at least 1.2e-38"),
        ],
    );
    assert_accepted(&dir, &config, "stage.0.steps=9223372036854775807");
    let ramp = "stage.0.batch_ramp={start=1,steps=4000000000}";
    done(&[
        "run",
        "--check",
        "--config",
        &config,
        "--run",
        &dir.path("none"),
        "--set",
        ramp,
        "--set",
        "stage.0.steps=4000000000",
    ]);
}

#[test]
fn an_allowed_change_of_an_unknown_key_is_an_error() {
    let dir = TestDir::new();
    for key in ["nonsense", "stage.0.stps", "stage.7"] {
        let refused = check(&dir, &["--allow-change", key]);
        assert!(refused.code == 2 && refused.err.contains(&format!("--allow-change {key}: ")), "{}", refused.err);
    }
    let accepted = check(&dir, &["--allow-change", "stage[0].steps", "--allow-change", "optimizer"]);
    assert_eq!(accepted.code, 0, "{}", accepted.err);
}

#[test]
fn fewer_steps_and_a_missing_configuration_are_reported() {
    let dir = TestDir::new();
    let (config, url) = (dir.config(7, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &url]);
    let fewer = ["--set", "stage.0.steps=5", "--allow-change", "stage.0.steps"];
    let shortened = run(&[&["run", "--run", &url][..], &fewer].concat());
    assert_eq!(shortened.code, 0, "{}", shortened.err);
    let warning = "the checkpoint is at step 7, beyond the 5 steps of the configuration: nothing left to train";
    assert!(shortened.err.contains(warning), "{}", shortened.err);
    std::fs::remove_file(format!("{url}/run.toml")).unwrap();
    for arguments in [&["run", "--run", &url][..], &["status", &url], &["metrics", &url]] {
        let refused = run(arguments);
        let cause = format!("{url} has checkpoints, but run.toml is missing; restore it, or ");
        assert!(refused.code == 2 && refused.err.contains(&cause), "{arguments:?}: {}", refused.err);
    }
    // With the configuration, the run goes on.
    let resumed = run(&["run", "--config", &config, "--run", &url, "--set", "stage.0.steps=9"]);
    assert!(resumed.code == 0 && resumed.err.contains("resuming from step-000000007"), "{}", resumed.err);
}

/// A worker whose libraries do not load fails before the run is created or queued.
#[test]
fn a_worker_that_cannot_start_is_an_error() {
    let dir = TestDir::new();
    let lambert = with_program(&dir, "echo 'libtorch_cpu.so: cannot open shared object file' >&2; exit 127");
    let (config, url) = (dir.config(7, 2), dir.path("new"));
    for more in [&["--check"][..], &[]] {
        let arguments = [&["run", "--config", &config, "--run", &url][..], more].concat();
        let output = std::process::Command::new(&lambert).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let expected =
            "lambert-worker does not start: libtorch_cpu.so: cannot open shared object file; make its libraries";
        assert!(text.contains(expected) && !text.contains("attempt 1"), "{text}");
        assert!(!Path::new(&url).exists(), "the run was created");
    }
    // The ranks are on other hosts, so this host need not load the worker.
    let hosts = "cluster.hosts=[\"127.0.0.1:2\"]";
    let arguments = ["run", "--check", "--config", &config, "--run", &url, "--set", hosts];
    let output = std::process::Command::new(&lambert).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("warning: ") && text.contains("does not start"), "{text}");
}

/// The CUDA build of libtorch is looked for on this machine, not by the first attempt.
#[test]
fn a_missing_cuda_build_is_reported() {
    let dir = TestDir::new();
    let checked = check(&dir, &["--set", "device.kind=cuda", "--set", "device.libtorch=/nowhere"]);
    let problem = "device: libtorch_cuda.so not found in /nowhere or its lib/ subdirectory (set by device.libtorch)";
    // A machine without GPUs, such as a login node, can check a run that will be trained elsewhere.
    if Path::new("/proc/driver/nvidia/version").exists() {
        assert!(checked.code == 2 && checked.err.contains(problem), "{}", checked.err);
    } else {
        let warning =
            format!("warning: {problem}; this machine has no NVIDIA driver, so a run started here would fail");
        assert!(checked.code == 0 && checked.out.contains(&warning), "{} {}", checked.out, checked.err);
    }
    let automatic = check(&dir, &["--set", "device.kind=auto"]);
    assert!(automatic.code == 2 || automatic.out.contains("\ndevice: "), "{} {}", automatic.out, automatic.err);
}

#[test]
fn ports_and_interfaces_are_checked() {
    let dir = TestDir::new();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let refused = check(&dir, &["--set", &format!("cluster.control.ports=[{port},{port}]")]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    for text in ["cannot listen on 127.0.0.1 for the ranks (cluster.control.ports: ", "Address already in use"] {
        assert!(refused.err.contains(text), "no {text:?} in {}", refused.err);
    }
    let hosts = ["--set", "cluster.hosts=[\"127.0.0.1:2\"]", "--set", "cluster.control.interface=nowhere9"];
    let refused = check(&dir, &hosts);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("cluster.control.interface: no interface nowhere9"), "{}", refused.err);
    // A run trains without these servers.
    let page = [format!("watch.port={port}"), format!("watch.url_file={:?}", dir.path("url"))];
    let warned = check(&dir, &["--set", &page[0], "--set", &page[1]]);
    assert_eq!(warned.code, 0, "{}", warned.err);
    assert!(warned.out.contains(&format!("warning: watch.port: cannot listen on {port}: ")), "{}", warned.out);
}

#[test]
fn more_threads_than_processors_are_warned_about() {
    let dir = TestDir::new();
    let warned = check(&dir, &["--set", "device.threads=1000"]);
    let warning = "warning: 2 ranks on this host (cluster.ranks) start 1000 threads each (device.threads), 2000 in total, but only";
    assert!(warned.code == 0 && warned.out.contains(warning), "{} {}", warned.out, warned.err);
}
