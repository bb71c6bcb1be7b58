//! The programs that the coordinator starts: workers that fail at once, other versions and makes of MPI, a proxy in their
//! environment.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::{
    self, ENDLESS, Place, Running, assert_same_bits, install, open_mpi_5, run_in, seconds, with_worker,
};

/// Runs such a copy to its end: its exit code and its log.
fn run_with_worker(place: &Place, script: &str) -> (i32, String) {
    let config = place.config(ENDLESS, 2);
    let arguments = ["run", "--config", &config, "--run", &place.path("run")];
    let output = Command::new(with_worker(place, script)).args(arguments).output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A worker that fails before it trains says why, in `status` too.
#[test]
fn a_failure_at_the_start_is_told_in_words() {
    let place = Place::new();
    let (code, log) = run_with_worker(&place, "exec $WORKER train --run $3 --attempt $5 --world 3");
    let why = "failed: expected 3 workers in this attempt, but MPI started 2";
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(why), "{log}");
    let status = support::done(&["status", &place.path("run")]);
    assert!(status.contains("error        rank ") && status.contains(why), "{status}");
}

/// One rank has another MPI than the other: refused before they try to find each other.
#[test]
fn a_mixture_of_versions_is_refused() {
    let Some([_, (name, library)]) = open_mpi_5() else { return };
    let place = Place::new();
    let script = format!("[ $OMPI_COMM_WORLD_RANK = 0 ] || export {name}={library}\nexec $WORKER \"$@\"");
    let start = Instant::now();
    let (code, log) = run_with_worker(&place, &script);
    seconds("a mixture of versions", start);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("version mismatch: rank "), "{log}");
    assert!(log.contains("MPI library") && log.contains("Open MPI v4") && log.contains("Open MPI v5"), "{log}");
}

/// mpirun's place is taken by the MPI of another house.
#[test]
fn another_mpi_is_refused_by_name() {
    let place = Place::new();
    let text = place.file("mpirun.sh", "#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.0.2'\n");
    install(Path::new(&text), &place.path("bin/mpirun"));
    let path = format!("{}:{}", place.path("bin"), std::env::var("PATH").unwrap());
    let ran = run_in(&["run", "--config", &place.config(9, 2), "--run", &place.path("run")], &[("PATH", path)]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("bin/mpirun is not Open MPI 4 or 5") && ran.err.contains("HYDRA"), "{}", ran.err);
}

/// A kill under Open MPI 5, and the same bits.
#[test]
fn open_mpi_5_starts_and_restarts() {
    let Some(environment) = open_mpi_5() else { return };
    let place = Place::new();
    let (config, run, reference) = (place.config(120, 2), place.path("run"), place.path("undisturbed"));
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

/// The control channel goes to the coordinator, whatever the environment says of the way to the world.
#[test]
fn a_proxy_is_not_for_the_control_channel() {
    let place = Place::new();
    let proxies = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"];
    // Nobody listens there.
    let environment = proxies.map(|name| (name, "http://127.0.0.1:9".to_owned()));
    let ended = Running::start_in(&place.config(20, 2), &place.path("run"), &[], &environment).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
}
