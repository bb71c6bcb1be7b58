//! The suite over real MPI processes. The tests named `rank_that_*` are what a rank does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod jobs;
mod suite;

use jobs::{as_rank, mpirun};
use lambert_collective::mpi::{Options, Wire};

const BF16: Options = Options {
    stall: std::time::Duration::from_secs(60),
    absence: std::time::Duration::from_secs(600),
    wire: Wire::Bf16,
};

/// What the first rank of a job says of its sums, once all have ended well.
fn digest_of_a_job(ranks: usize, test: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(ranks, test, folder.path());
    assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(folder.path().join("digest")).unwrap()
}

fn two_jobs_agree(test: &str) {
    for ranks in [1, 2, 3, 4, 8] {
        let digests: Vec<_> = (0..2).map(|_| digest_of_a_job(ranks, test)).collect();
        assert_eq!(digests[0], digests[1], "two jobs of {ranks} ranks summed to different bits");
    }
}

#[test]
fn the_suite_with_one_to_eight_processes() {
    two_jobs_agree("rank_that_runs_the_suite");
    for ranks in 5..8 {
        digest_of_a_job(ranks, "rank_that_runs_the_suite");
    }
}

#[test]
fn rank_that_runs_the_suite() {
    as_rank_of_the_suite(Options::default(), suite::F32);
}

#[test]
fn the_suite_in_bf16() {
    two_jobs_agree("rank_that_runs_the_suite_in_bf16");
}

#[test]
fn rank_that_runs_the_suite_in_bf16() {
    as_rank_of_the_suite(BF16, suite::BF16);
}

fn as_rank_of_the_suite(options: Options, rounding: f64) {
    let Some(mut ends) = as_rank(options) else { return };
    let digest = suite::everything(&mut ends, rounding);
    if ends.group.rank() == 0 {
        jobs::write("digest", &digest.to_string());
    }
    ends.finish().unwrap();
}

#[test]
fn a_hundred_megabytes_in_two_to_eight_processes() {
    for ranks in [2, 3, 4, 8] {
        digest_of_a_job(ranks, "rank_that_sums_a_hundred_megabytes");
    }
}

#[test]
fn rank_that_sums_a_hundred_megabytes() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    suite::a_hundred_megabytes(&mut ends);
    jobs::write("digest", "");
    ends.finish().unwrap();
}
