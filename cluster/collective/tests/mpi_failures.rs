//! Ranks that die, hang, are late or do something else, over real MPI processes. The tests named `rank_that_*` are what a rank
//! does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod jobs;
#[allow(dead_code, reason = "one of its checks is for a world that fails")]
mod suite;

use std::path::Path;
use std::time::{Duration, Instant};

use jobs::{as_rank, mpirun, signal_self_after};
use lambert_collective::mpi::Options;
use lambert_collective::{Bucket, Endpoints, Error, Result, all_reduce};

const STALL: Duration = Duration::from_secs(2);

/// What the limit may be exceeded by.
const GRACE: Duration = Duration::from_secs(5);

fn limits(stall: Duration, absence: Duration) -> Options {
    Options { stall, absence, ..Options::default() }
}

/// Runs a job of three ranks that must fail, and returns what those of `ranks` noticed, once no process of it is left.
fn noticed(test: &str, ranks: &[usize]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = mpirun(3, test, folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(took < Duration::from_secs(25), "the job took {took:?}");
    assert_gone(folder.path());
    let file = |rank: &usize| folder.path().join(format!("noticed-{rank}"));
    ranks
        .iter()
        .map(|rank| std::fs::read_to_string(file(rank)).unwrap_or_else(|_| panic!("rank {rank}: {said}")))
        .collect()
}

fn assert_gone(folder: &Path) {
    for rank in 0..3 {
        let pid = std::fs::read_to_string(folder.join(format!("pid-{rank}"))).unwrap();
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

/// Leaves `what` for the test, and stays until the other one of the first two ranks has left something: who ends takes the others
/// along.
fn tell(ends: &Endpoints, what: &str) {
    jobs::write(&format!("noticed-{}", ends.group.rank()), what);
    jobs::wait_for(&["noticed-0", "noticed-1"]);
}

/// Does `operation` until it fails; the error, and that it took from the last success on no longer than `limit` and a grace.
fn until_it_fails(limit: Duration, mut operation: impl FnMut() -> Result<()>) -> Error {
    loop {
        let begin = Instant::now();
        if let Err(error) = operation() {
            let took = begin.elapsed();
            assert!(took >= limit / 2 && took < limit + GRACE, "{error} after {took:?}");
            eprintln!("{error} after {:.1} s", took.as_secs_f64());
            return error;
        }
    }
}

#[test]
fn a_rank_that_is_stopped_inside_an_all_reduce_is_named() {
    for words in noticed("rank_that_is_stopped_inside_an_all_reduce", &[0, 1]) {
        assert_eq!(words, "reduction of a bucket: deadline exceeded, still waiting for rank 2");
    }
}

#[test]
fn rank_that_is_stopped_inside_an_all_reduce() {
    let Some(mut ends) = as_rank(limits(STALL, 60 * STALL)) else { return };
    if ends.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let mut values = vec![0.0; 4 << 20];
    let error = until_it_fails(STALL, || all_reduce(&mut *ends.reducer, &mut values, None));
    let again = ends.group.barrier().unwrap_err();
    assert_eq!(again.to_string(), error.to_string(), "the group is of no use then");
    tell(&ends, &error.to_string());
}

#[test]
fn a_rank_that_is_stopped_is_named_by_each_operation_of_the_group() {
    for operation in ["all-reduce of f64", "broadcast", "gather", "barrier"] {
        let test = format!("rank_that_is_stopped_in_{}", operation.replace([' ', '-'], "_"));
        // Rank 1 has nothing to wait for in a gather, and the barrier that follows fails as this did.
        for words in noticed(&test, &[0, 1]) {
            assert!(words.ends_with(": deadline exceeded, still waiting for rank 2"), "{operation}: {words}");
        }
    }
}

fn as_rank_of_a_group(operation: fn(&mut Endpoints) -> Result<()>) {
    let Some(mut ends) = as_rank(limits(STALL, 60 * STALL)) else { return };
    if ends.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let error = until_it_fails(STALL, || operation(&mut ends).and_then(|()| ends.group.barrier()));
    tell(&ends, &error.to_string());
}

#[test]
fn rank_that_is_stopped_in_all_reduce_of_f64() {
    as_rank_of_a_group(|ends| ends.group.all_reduce_sum_f64(&mut [1.0; 1000]));
}

#[test]
fn rank_that_is_stopped_in_broadcast() {
    as_rank_of_a_group(|ends| ends.group.broadcast_bytes(&mut vec![1; 3 << 20], 2));
}

#[test]
fn rank_that_is_stopped_in_gather() {
    as_rank_of_a_group(|ends| ends.group.gather_bytes(&[1; 3 << 20], 0).map(drop));
}

#[test]
fn rank_that_is_stopped_in_barrier() {
    as_rank_of_a_group(|ends| ends.group.barrier());
}

/// Its communication thread answers while it computes: no limit of segments ends that.
#[test]
fn a_straggler_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = mpirun(3, "rank_that_waits_for_a_straggler", folder.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn rank_that_waits_for_a_straggler() {
    let Some(mut ends) = as_rank(limits(STALL / 4, 60 * STALL)) else { return };
    for rank in [0, 2] {
        if ends.group.rank() == rank {
            std::thread::sleep(STALL);
        }
        let mut values = vec![1.0; 1 << 20];
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
        assert!(values.iter().all(|value| *value == 3.0));
        if ends.group.rank() == rank {
            std::thread::sleep(STALL);
        }
        ends.group.barrier().unwrap();
    }
    ends.finish().unwrap();
}

#[test]
fn a_rank_that_answers_and_never_comes_is_named_in_the_end() {
    for words in noticed("rank_that_answers_and_never_comes", &[0, 1]) {
        assert_eq!(words, "barrier: deadline exceeded, still waiting for rank 2");
    }
}

#[test]
fn rank_that_answers_and_never_comes() {
    let Some(mut ends) = as_rank(limits(STALL / 4, STALL)) else { return };
    if ends.group.rank() < 2 {
        let error = until_it_fails(STALL, || ends.group.barrier());
        tell(&ends, &error.to_string());
    }
    jobs::wait_for(&["noticed-0", "noticed-1"]);
}

#[test]
fn a_rank_that_never_comes_is_noticed_at_the_deadline() {
    noticed("rank_that_never_comes", &[0, 1]);
}

#[test]
fn rank_that_never_comes() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    if ends.group.rank() < 2 {
        suite::a_rank_that_never_comes_is_noticed(&mut ends);
        tell(&ends, "");
    }
    jobs::wait_for(&["noticed-0", "noticed-1"]);
}

#[test]
fn a_bucket_that_was_given_up_is_left_alone() {
    noticed("rank_that_gives_a_bucket_up", &[0, 1]);
}

/// All give it up after some of its segments; whatever MPI still does, the values stay as they are then.
#[test]
fn rank_that_gives_a_bucket_up() {
    let Some(mut ends) = as_rank(limits(STALL, 60 * STALL)) else { return };
    let mut values = vec![1.0f32; 16 << 20];
    ends.group.barrier().unwrap();
    // SAFETY: `values` is touched only after the reduction was dropped.
    let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
    let pending = ends.reducer.start(bucket).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    drop(pending);
    values.fill(0.5);
    std::thread::sleep(Duration::from_millis(500));
    assert!(values.iter().all(|value| *value == 0.5), "a bucket was touched after it was given up");
    // Its own rank is told at the next segment; one that waits for a segment of such a rank, by the limit.
    let error = ends.group.barrier().unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. } | Error::Deadline { .. }), "{error}");
    tell(&ends, "");
}

#[test]
fn buckets_of_different_lengths_are_told() {
    for words in noticed("rank_that_has_another_length", &[0, 1]) {
        assert_eq!(words, "reduction of a bucket: a segment of 12 bytes here, of 16 on rank 2");
    }
}

/// In a world of three the last rank is folded in by the first: the second hears of it by its silence only.
#[test]
fn rank_that_has_another_length() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    let rank = ends.group.rank();
    if rank == 0 {
        let error = all_reduce(&mut *ends.reducer, &mut [1.0; 3], None).unwrap_err();
        jobs::write("noticed-1", &error.to_string());
        tell(&ends, &error.to_string());
    } else if rank == 2 {
        let _pending = all_reduce(&mut *ends.reducer, &mut [1.0; 4], Some(Instant::now() + STALL));
    }
    jobs::wait_for(&["noticed-0", "noticed-1"]);
}

#[test]
fn a_rank_killed_inside_an_all_reduce_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = mpirun(3, "rank_that_is_killed", folder.path());
    assert!(!output.status.success());
    assert!(took < Duration::from_millis(300) + 2 * GRACE, "the survivors waited for {took:?}");
    assert_gone(folder.path());
}

#[test]
fn rank_that_is_killed() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    if ends.group.rank() == 1 {
        signal_self_after("KILL", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 20];
    loop {
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    }
}

#[test]
fn a_rank_that_returns_early_ends_the_job() {
    noticed("rank_that_returns_early", &[]);
}

#[test]
fn rank_that_returns_early() {
    let Some(mut ends) = as_rank(Options::default()) else { return };
    if ends.group.rank() != 1 {
        ends.group.barrier().unwrap();
    }
}
