//! Programs that the coordinator starts: workers that fail immediately, other versions and implementations of MPI, and
//! workers with a proxy in their environment.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::{
    self, ENDLESS, Running, TestDir, assert_same_bits, install, open_mpi_5, run_in, seconds, with_worker,
};

/// Runs a copy of `lambert` with this worker script. Returns the exit code and the log.
fn run_with_worker(dir: &TestDir, script: &str) -> (i32, String) {
    let config = dir.config(ENDLESS, 2);
    let arguments = ["run", "--config", &config, "--run", &dir.path("run")];
    let output = Command::new(with_worker(dir, script)).args(arguments).output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The error of a worker that fails before training is in the log and in `status`.
#[test]
fn a_failure_at_startup_is_reported() {
    let dir = TestDir::new();
    let (code, log) = run_with_worker(&dir, "exec $WORKER train --run $3 --attempt $5 --world 3");
    let why = "failed: expected 3 workers in this attempt, but MPI started 2";
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(why), "{log}");
    let status = support::done(&["status", &dir.path("run")]);
    assert!(status.contains("error        rank ") && status.contains(why), "{status}");
}

/// A rank without a reply from its coordinator exits with code 69. Regression test: such attempts were repeated forever.
#[test]
fn ranks_that_never_reach_the_coordinator_end_the_run() {
    let dir = TestDir::new();
    let program = with_worker(&dir, "[ \"$1\" = train ] && exit 69\nexec $WORKER \"$@\"");
    let sets = ["--set", "cluster.restart.start_timeout_minutes=0.1"];
    let start = Instant::now();
    let ended = Running::start_by(Command::new(program), &dir.config(ENDLESS, 2), &dir.path("run"), &sets).end();
    seconds("starts without a report, for 6 s", start);
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    for text in ["giving up: no rank has reported for ", "exited: no reply from the coordinator at 127.0.0.1:"] {
        assert!(ended.log.contains(text), "no {text:?} in {}", ended.log);
    }
    assert!(!ended.log.contains("suspended"), "{}", ended.log);
}

/// Regression test: a start with ranks whose libraries are missing on their hosts was repeated for an hour. Open MPI 4 names a
/// rank only if others are running.
#[test]
fn ranks_that_do_not_load_end_the_run() {
    let error = "lambert-worker: error while loading shared libraries: libtorch_cpu.so: cannot open shared object file";
    for (condition, rank) in [("[ $OMPI_COMM_WORLD_RANK = 0 ]", "rank 1"), ("false", "rank ")] {
        let dir = TestDir::new();
        let start = Instant::now();
        let script = format!("{condition} || {{ echo '{error}' >&2; exit 127; }}\nexec $WORKER \"$@\"");
        let (code, log) = run_with_worker(&dir, &script);
        seconds("a rank that does not load", start);
        assert_eq!(code, 2, "{log}");
        let why = "(exit code 127): libtorch_cpu.so: cannot open shared object file; install";
        assert!(log.contains(&format!("lambert-worker did not load for {rank}")) && log.contains(why), "{log}");
        assert!(!log.contains("retrying") && !log.contains("attempt 2"), "{log}");
    }
}

/// Two ranks with different MPI versions are rejected before they connect.
#[test]
fn a_version_mismatch_is_rejected() {
    let Some([_, (name, library)]) = open_mpi_5() else { return };
    let dir = TestDir::new();
    let script = format!("[ $OMPI_COMM_WORLD_RANK = 0 ] || export {name}={library}\nexec $WORKER \"$@\"");
    let start = Instant::now();
    let (code, log) = run_with_worker(&dir, &script);
    seconds("a mixture of versions", start);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("version mismatch: rank "), "{log}");
    assert!(log.contains("MPI library") && log.contains("Open MPI v4") && log.contains("Open MPI v5"), "{log}");
}

/// The mpirun in PATH belongs to another MPI implementation.
#[test]
fn another_mpi_is_rejected_by_name() {
    let dir = TestDir::new();
    let text = dir.file("mpirun.sh", "#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.0.2'\n");
    install(Path::new(&text), &dir.path("bin/mpirun"));
    let path = format!("{}:{}", dir.path("bin"), std::env::var("PATH").unwrap());
    let ran = run_in(&["run", "--config", &dir.config(9, 2), "--run", &dir.path("run")], &[("PATH", path)]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("bin/mpirun is not Open MPI 4 or 5") && ran.err.contains("HYDRA"), "{}", ran.err);
}

/// Containers often have no ssh. Ranks on this host do not need it. For other hosts, the missing ssh is a usage error.
#[test]
fn only_ranks_on_other_hosts_need_ssh() {
    let dir = TestDir::new();
    let path = std::env::var_os("PATH").unwrap();
    let mpirun = std::env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|program| program.exists());
    let only_mpirun = dir.path("only-mpirun");
    std::fs::create_dir(&only_mpirun).unwrap();
    std::os::unix::fs::symlink(mpirun.unwrap(), Path::new(&only_mpirun).join("mpirun")).unwrap();
    let mut environments = vec![vec![("PATH", only_mpirun)]];
    if let Some([_, library]) = open_mpi_5() {
        let programs = Path::new(&library.1).with_file_name("bin");
        environments.push(vec![("PATH", programs.to_str().unwrap().to_owned()), library]);
    }
    for environment in environments {
        let dir = TestDir::new();
        let ended = Running::start_in(&dir.config(5, 2), &dir.path("run"), &[], &environment).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        assert!(!ended.log.contains("restarting") && !ended.log.contains("retrying"), "{}", ended.log);
        let remote = ["--set", "cluster.hosts=[\"192.0.2.1:2\"]"];
        let ended = Running::start_in(&dir.config(5, 2), &dir.path("remote"), &remote, &environment).end();
        assert_eq!(ended.code, Some(2), "{}", ended.log);
        assert!(ended.log.contains("mpirun found no ssh in PATH"), "{}", ended.log);
    }
}

/// A rank is killed under Open MPI 5. The final bits must stay the same.
#[test]
fn open_mpi_5_starts_and_restarts() {
    let Some(environment) = open_mpi_5() else { return };
    let dir = TestDir::new();
    let (config, run, reference) = (dir.config(120, 2), dir.path("run"), dir.path("undisturbed"));
    let ended = Running::start_in(&config, &reference, &[], &environment).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let mut running = Running::start_in(&config, &run, &[], &environment);
    running.reach(20);
    running.kill_rank(1, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(ended.log.contains("rank 1 (pid ") && ended.log.contains("killed by SIGKILL"), "{}", ended.log);
    assert_same_bits(&reference, &run);
}

/// The control channel bypasses proxies from the environment.
#[test]
fn the_control_channel_uses_no_proxy() {
    let dir = TestDir::new();
    let proxies = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"];
    // Nothing listens on this port.
    let environment = proxies.map(|name| (name, "http://127.0.0.1:9".to_owned()));
    let ended = Running::start_in(&dir.config(20, 2), &dir.path("run"), &[], &environment).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
}
