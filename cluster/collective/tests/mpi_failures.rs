//! Tests with real MPI processes. One of the processes dies, hangs, is late or makes a call that does not match the
//! others. Each rank of a job runs a test named `rank_that_*`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod jobs;
#[allow(dead_code, reason = "only one of its checks is used here")]
mod suite;

use std::path::Path;
use std::time::{Duration, Instant};

use jobs::{as_rank, mpirun, signal_self_after};
use lambert_collective::mpi::MpiOptions;
use lambert_collective::{Bucket, Endpoints, Error, Result, all_reduce};

const STALL: Duration = Duration::from_secs(2);

/// Margin by which an operation may exceed a timeout.
const TOLERANCE: Duration = Duration::from_secs(5);

fn timeouts(stall_timeout: Duration, straggler_timeout: Duration) -> MpiOptions {
    MpiOptions { stall_timeout, straggler_timeout, ..MpiOptions::default() }
}

/// Runs a job of three ranks. The job must fail and leave no process. Returns the errors of `ranks`.
fn errors_of_failed_job(test: &str, ranks: &[usize]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = mpirun(3, test, folder.path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    assert!(took < Duration::from_secs(25), "the job took {took:?}");
    assert_processes_gone(folder.path());
    let file = |rank: &usize| folder.path().join(format!("error-{rank}"));
    ranks
        .iter()
        .map(|rank| std::fs::read_to_string(file(rank)).unwrap_or_else(|_| panic!("rank {rank}: {stderr}")))
        .collect()
}

fn assert_processes_gone(folder: &Path) {
    for rank in 0..3 {
        let pid = std::fs::read_to_string(folder.join(format!("pid-{rank}"))).unwrap();
        assert!(is_gone(&pid), "rank {rank} (process {pid}) outlived the job");
    }
}

/// Returns true if the process exits within a second. mpirun may return shortly before the last killed rank has exited.
/// A zombie counts as exited, because its parent mpirun has exited and only init can reap the zombie.
fn is_gone(pid: &str) -> bool {
    (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_err() || status.is_ok_and(|status| status.contains("State:\tZ"))
    })
}

/// Writes `error` to a file for the test. Then waits until ranks 0 and 1 have both written their errors, because mpirun
/// kills all ranks when one rank exits.
fn report(endpoints: &Endpoints, error: &str) {
    jobs::write(&format!("error-{}", endpoints.group.rank()), error);
    jobs::wait_for(&["error-0", "error-1"]);
}

/// Repeats `operation` until it fails and returns the error. Checks that the last call took at least `limit` / 2 and
/// less than `limit` + [`TOLERANCE`].
fn repeat_until_error(limit: Duration, mut operation: impl FnMut() -> Result<()>) -> Error {
    loop {
        let begin = Instant::now();
        if let Err(error) = operation() {
            let took = begin.elapsed();
            assert!(took >= limit / 2 && took < limit + TOLERANCE, "{error} after {took:?}");
            eprintln!("{error} after {:.1} s", took.as_secs_f64());
            return error;
        }
    }
}

#[test]
fn a_rank_that_is_stopped_inside_an_all_reduce_is_named() {
    for error in errors_of_failed_job("rank_that_is_stopped_inside_an_all_reduce", &[0, 1]) {
        assert_eq!(error, "bucket all-reduce: deadline exceeded, still waiting for rank 2");
    }
}

#[test]
fn rank_that_is_stopped_inside_an_all_reduce() {
    let Some(mut endpoints) = as_rank(timeouts(STALL, 60 * STALL)) else { return };
    if endpoints.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let mut values = vec![0.0; 4 << 20];
    let error = repeat_until_error(STALL, || all_reduce(&mut *endpoints.reducer, &mut values, None));
    let again = endpoints.group.barrier().unwrap_err();
    assert_eq!(again.to_string(), error.to_string(), "the group stays unusable");
    report(&endpoints, &error.to_string());
}

#[test]
fn every_group_operation_names_a_stopped_rank() {
    for operation in ["f64 all-reduce", "broadcast", "gather", "barrier"] {
        let test = format!("rank_that_is_stopped_in_{}", operation.replace([' ', '-'], "_"));
        // In a gather, rank 1 waits for no other rank. The barrier after the gather fails in the same way.
        for error in errors_of_failed_job(&test, &[0, 1]) {
            assert!(error.ends_with(": deadline exceeded, still waiting for rank 2"), "{operation}: {error}");
        }
    }
}

fn as_rank_of_a_group(operation: fn(&mut Endpoints) -> Result<()>) {
    let Some(mut endpoints) = as_rank(timeouts(STALL, 60 * STALL)) else { return };
    if endpoints.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let error = repeat_until_error(STALL, || operation(&mut endpoints).and_then(|()| endpoints.group.barrier()));
    report(&endpoints, &error.to_string());
}

#[test]
fn rank_that_is_stopped_in_f64_all_reduce() {
    as_rank_of_a_group(|endpoints| endpoints.group.all_reduce_sum_f64(&mut [1.0; 1000]));
}

#[test]
fn rank_that_is_stopped_in_broadcast() {
    as_rank_of_a_group(|endpoints| endpoints.group.broadcast_bytes(&mut vec![1; 3 << 20], 2));
}

#[test]
fn rank_that_is_stopped_in_gather() {
    as_rank_of_a_group(|endpoints| endpoints.group.gather_bytes(&[1; 3 << 20], 0).map(drop));
}

#[test]
fn rank_that_is_stopped_in_barrier() {
    as_rank_of_a_group(|endpoints| endpoints.group.barrier());
}

/// The communication thread of the straggler replies to probes while the rank computes, so the stall timeout does not
/// apply.
#[test]
fn a_straggler_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(3, "rank_that_waits_for_a_straggler", folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rank_that_waits_for_a_straggler() {
    let Some(mut endpoints) = as_rank(timeouts(STALL / 4, 60 * STALL)) else { return };
    for rank in [0, 2] {
        if endpoints.group.rank() == rank {
            std::thread::sleep(STALL);
        }
        let mut values = vec![1.0; 1 << 20];
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
        assert!(values.iter().all(|value| *value == 3.0));
        if endpoints.group.rank() == rank {
            std::thread::sleep(STALL);
        }
        endpoints.group.barrier().unwrap();
    }
    endpoints.finish().unwrap();
}

/// A rank without an operation in flight polls only eight times in the stall timeout. More ranks than that probe it.
#[test]
fn a_straggler_answers_the_probes_of_many_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(10, "rank_that_probes_a_straggler_with_many", folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rank_that_probes_a_straggler_with_many() {
    let Some(mut endpoints) = as_rank(timeouts(STALL / 2, 60 * STALL)) else { return };
    endpoints.group.barrier().unwrap();
    if endpoints.group.rank() == 0 {
        std::thread::sleep(STALL);
    }
    endpoints.group.barrier().unwrap();
    endpoints.finish().unwrap();
}

#[test]
fn a_rank_that_replies_but_never_arrives_is_named_after_the_straggler_timeout() {
    for error in errors_of_failed_job("rank_that_replies_but_never_arrives", &[0, 1]) {
        assert_eq!(error, "barrier: deadline exceeded, still waiting for rank 2");
    }
}

#[test]
fn rank_that_replies_but_never_arrives() {
    let Some(mut endpoints) = as_rank(timeouts(STALL / 4, STALL)) else { return };
    if endpoints.group.rank() < 2 {
        let error = repeat_until_error(STALL, || endpoints.group.barrier());
        report(&endpoints, &error.to_string());
    }
    jobs::wait_for(&["error-0", "error-1"]);
}

#[test]
fn a_rank_that_never_arrives_is_detected_at_the_deadline() {
    errors_of_failed_job("rank_that_never_arrives", &[0, 1]);
}

#[test]
fn rank_that_never_arrives() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    if endpoints.group.rank() < 2 {
        suite::a_rank_that_never_arrives_is_detected(&mut endpoints);
        report(&endpoints, "");
    }
    jobs::wait_for(&["error-0", "error-1"]);
}

#[test]
fn a_canceled_bucket_is_not_accessed_again() {
    errors_of_failed_job("rank_that_cancels_a_bucket", &[0, 1]);
}

/// All ranks cancel the bucket after some of its segments were transferred.
#[test]
fn rank_that_cancels_a_bucket() {
    let Some(mut endpoints) = as_rank(timeouts(STALL, 60 * STALL)) else { return };
    let mut values = vec![1.0f32; 16 << 20];
    endpoints.group.barrier().unwrap();
    // SAFETY: `values` is accessed only after the all-reduce has been dropped.
    let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
    let pending = endpoints.reducer.start(bucket).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    drop(pending);
    values.fill(0.5);
    std::thread::sleep(Duration::from_millis(500));
    assert!(values.iter().all(|value| *value == 0.5), "the bucket was accessed after cancellation");
    // A rank fails at its next segment of the bucket, or by timeout if it waits for a segment of another rank.
    let error = endpoints.group.barrier().unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. } | Error::Deadline { .. }), "{error}");
    report(&endpoints, "");
}

#[test]
fn buckets_of_different_lengths_are_reported() {
    for error in errors_of_failed_job("rank_that_has_a_different_length", &[0, 1]) {
        assert_eq!(error, "bucket all-reduce: expected a segment of 12 bytes, received 16 bytes from rank 2");
    }
}

/// With three ranks, rank 2 exchanges data only with rank 0. Rank 1 would detect the error only by timeout, so it takes
/// no part.
#[test]
fn rank_that_has_a_different_length() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    let rank = endpoints.group.rank();
    if rank == 0 {
        let error = all_reduce(&mut *endpoints.reducer, &mut [1.0; 3], None).unwrap_err();
        jobs::write("error-1", &error.to_string());
        report(&endpoints, &error.to_string());
    } else if rank == 2 {
        let _pending = all_reduce(&mut *endpoints.reducer, &mut [1.0; 4], Some(Instant::now() + STALL));
    }
    jobs::wait_for(&["error-0", "error-1"]);
}

#[test]
fn a_rank_killed_inside_an_all_reduce_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = mpirun(3, "rank_that_is_killed", folder.path());
    assert!(!output.status.success());
    assert!(took < Duration::from_millis(300) + 2 * TOLERANCE, "the other ranks exited after {took:?}");
    assert_processes_gone(folder.path());
}

#[test]
fn rank_that_is_killed() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    if endpoints.group.rank() == 1 {
        signal_self_after("KILL", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 20];
    loop {
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
    }
}

#[test]
fn a_rank_that_returns_early_ends_the_job() {
    errors_of_failed_job("rank_that_returns_early", &[]);
}

#[test]
fn rank_that_returns_early() {
    let Some(mut endpoints) = as_rank(MpiOptions::default()) else { return };
    if endpoints.group.rank() != 1 {
        endpoints.group.barrier().unwrap();
    }
}
