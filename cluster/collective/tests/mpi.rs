//! The suite over real MPI processes: this test program starts itself again under `mpirun`.
//!
//! The tests named `rank_that_*` are what a rank does; run by hand, outside an MPI job, they do nothing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod suite;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lambert_collective::{Endpoints, all_reduce, mpi, world};

/// Where the ranks of a job leave files for the test that started them.
const FOLDER: &str = "LAMBERT_TEST_FOLDER";

fn mpirun(ranks: usize, test: &str, folder: &Path) -> (Output, Duration) {
    let start = Instant::now();
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .expect("mpirun is installed (cluster/setup.sh does it)");
    (output, start.elapsed())
}

/// This process as a rank of the job that was started for the calling test, or `None` outside one.
fn as_rank() -> Option<Endpoints> {
    let detected = world::detect()?;
    let ends = mpi::init(mpi::Options::default()).unwrap();
    let rank = ends.group.rank();
    assert_eq!((rank, ends.group.world()), (detected.rank, detected.size));
    let folder = std::env::var(FOLDER).unwrap();
    std::fs::write(format!("{folder}/pid-{rank}"), std::process::id().to_string()).unwrap();
    Some(ends)
}

#[test]
fn the_suite_with_two_and_three_processes() {
    for ranks in [2, 3] {
        let digests: Vec<_> = (0..2).map(|_| digest_of_a_job(ranks)).collect();
        assert_eq!(digests[0], digests[1], "two jobs of {ranks} ranks summed to different bits");
    }
}

fn digest_of_a_job(ranks: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(ranks, "rank_that_runs_the_suite", folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(folder.path().join("digest")).unwrap()
}

#[test]
fn rank_that_runs_the_suite() {
    let Some(mut ends) = as_rank() else { return };
    let digest = suite::everything(&mut ends);
    if ends.group.rank() == 0 {
        std::fs::write(format!("{}/digest", std::env::var(FOLDER).unwrap()), digest.to_string()).unwrap();
    }
    ends.finish().unwrap();
}

#[test]
fn a_rank_that_never_comes_is_noticed_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(3, "rank_that_never_comes", folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for rank in 0..2 {
        assert!(folder.path().join(format!("noticed-{rank}")).exists(), "{said}");
    }
}

#[test]
fn rank_that_never_comes() {
    let Some(mut ends) = as_rank() else { return };
    let rank = ends.group.rank();
    let noticed = |rank: usize| Path::new(&std::env::var(FOLDER).unwrap()).join(format!("noticed-{rank}"));
    if rank < 2 {
        suite::a_rank_that_never_comes_is_noticed(&mut ends);
        std::fs::write(noticed(rank), "").unwrap();
    }
    // Who ends takes the others along.
    while !(0..2).all(|rank| noticed(rank).exists()) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rank_killed_inside_an_all_reduce_ends_the_job() {
    job_ends_with_failure("rank_that_is_killed");
}

#[test]
fn rank_that_is_killed() {
    let Some(mut ends) = as_rank() else { return };
    if ends.group.rank() == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
        });
    }
    let mut values = vec![1.0; 1 << 20];
    loop {
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    }
}

#[test]
fn a_rank_that_returns_early_ends_the_job() {
    job_ends_with_failure("rank_that_returns_early");
}

#[test]
fn rank_that_returns_early() {
    let Some(mut ends) = as_rank() else { return };
    if ends.group.rank() != 1 {
        ends.group.barrier().unwrap();
    }
}

fn job_ends_with_failure(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = mpirun(3, test, folder.path());
    assert!(!output.status.success());
    assert!(took < Duration::from_secs(20), "the survivors waited for {took:?}");
    for rank in 0..3 {
        let pid = std::fs::read_to_string(folder.path().join(format!("pid-{rank}"))).unwrap();
        assert!(gone(&pid), "rank {rank} (process {pid}) outlived the job");
    }
}

/// mpirun may return a moment before the last rank it has killed is gone. A zombie is gone: its parent mpirun is,
/// and whether anybody reaps it is up to the machine's first process.
fn gone(pid: &str) -> bool {
    (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_err() || status.is_ok_and(|status| status.contains("State:\tZ"))
    })
}
