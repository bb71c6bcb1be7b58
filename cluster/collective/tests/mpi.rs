//! Conformance suite with real MPI processes. Each rank of a job runs a test named `rank_that_*`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod jobs;
mod suite;

use std::collections::BTreeSet;

use jobs::{as_rank, mpirun};
use lambert_collective::mpi::{MpiOptions, WireFormat};

const BF16: MpiOptions = MpiOptions {
    stall_timeout: std::time::Duration::from_secs(60),
    straggler_timeout: std::time::Duration::from_secs(600),
    wire: WireFormat::Bf16,
};

/// Runs a job that must succeed. Returns the digest of the sums on rank 0.
fn digest_of_a_job(ranks: usize, test: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(ranks, test, folder.path());
    assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(folder.path().join("digest")).unwrap()
}

fn assert_two_jobs_agree(test: &str) {
    for ranks in [1, 2, 3, 4, 8] {
        let digests: Vec<_> = (0..2).map(|_| digest_of_a_job(ranks, test)).collect();
        assert_eq!(digests[0], digests[1], "two jobs of {ranks} ranks have different bits");
    }
}

#[test]
fn the_suite_passes_with_one_to_eight_processes() {
    assert_two_jobs_agree("rank_that_runs_the_suite");
    for ranks in 5..8 {
        digest_of_a_job(ranks, "rank_that_runs_the_suite");
    }
}

#[test]
fn rank_that_runs_the_suite() {
    as_rank_of_the_suite(MpiOptions::default(), suite::F32);
}

#[test]
fn the_suite_passes_in_bf16() {
    assert_two_jobs_agree("rank_that_runs_the_suite_in_bf16");
}

#[test]
fn rank_that_runs_the_suite_in_bf16() {
    as_rank_of_the_suite(BF16, suite::BF16);
}

fn as_rank_of_the_suite(options: MpiOptions, rounding: f64) {
    let Some(mut endpoints) = as_rank(options) else { return };
    let digest = suite::run_all_checks(&mut endpoints, rounding);
    if endpoints.group.rank() == 0 {
        jobs::write("digest", &digest.to_string());
    }
    let before = libraries();
    endpoints.finish().unwrap();
    let after = libraries();
    let unloaded: Vec<_> = before.difference(&after).collect();
    assert!(unloaded.is_empty() && before.iter().any(|path| path.contains("/libmpi.so")), "{unloaded:?}");
}

/// Paths of the libraries in memory.
fn libraries() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_once('/'));
    paths.map(|(_, path)| format!("/{path}")).filter(|path| path.contains(".so")).collect()
}

#[test]
fn two_to_eight_processes_sum_100_megabytes() {
    for ranks in [2, 3, 4, 8] {
        digest_of_a_job(ranks, "rank_that_sums_a_hundred_megabytes");
    }
}

#[test]
fn rank_that_sums_a_hundred_megabytes() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    suite::sum_100_megabytes(&mut endpoints);
    jobs::write("digest", "");
    endpoints.finish().unwrap();
}
