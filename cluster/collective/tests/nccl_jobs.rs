//! The backend over NCCL in real MPI processes, with a test library in NCCL's place (cards/nccl.c): the id travels over MPI, and MPI
//! says whose fault it is. The tests named `rank_that_*` are what a rank does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

#[allow(dead_code, reason = "tests of threads break more")]
mod cards;
mod jobs;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cards::{LazyCard, OnCard};
use jobs::{as_rank, file, mpirun, signal_self_after};
use lambert_collective::nccl::{self, Library};
use lambert_collective::{Bucket, Endpoints, all_reduce, mpi};

const STALL: Duration = Duration::from_secs(1);

/// What the limit may be exceeded by.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `test` as the ranks of a job that finds the test library.
fn job(ranks: usize, test: &str, folder: &Path) -> (Output, Duration) {
    std::fs::create_dir(folder.join("lib")).unwrap();
    std::fs::copy(cards::compiled(), folder.join("lib/libnccl.so.2")).unwrap();
    mpirun(ranks, test, folder)
}

/// This process as a rank with a card, or `None` outside a job.
fn as_rank_with_a_card() -> Option<Endpoints> {
    let mut ends = as_rank(mpi::Options { stall: STALL, absence: 60 * STALL, ..mpi::Options::default() })?;
    let library = Arc::new(Library::open(&[file("lib")]).unwrap());
    let card = LazyCard::new(ends.group.rank() as u64);
    let options = nccl::Options { stall: STALL, ..nccl::Options::default() };
    let reducer = nccl::join(&mut *ends.group, ends.reducer, &library, card, options).unwrap();
    Some(Endpoints { group: ends.group, reducer: Box::new(OnCard(reducer)) })
}

#[test]
fn two_to_four_processes_sum_what_each_of_them_has() {
    for ranks in [2, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let (output, _) = job(ranks, "rank_that_sums", folder.path());
        assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_to_string(folder.path().join("sums")).unwrap(), ranks.to_string());
    }
}

#[test]
fn rank_that_sums() {
    let Some(mut ends) = as_rank_with_a_card() else { return };
    let (rank, world) = (ends.group.rank(), ends.group.world());
    let mut values: Vec<f32> = (0..200_000).map(|i| ((i + rank) % 100) as f32).collect();
    let bucket = |part: &mut [f32]| {
        // SAFETY: `values` are touched only after the sums were awaited.
        unsafe { Bucket::host(part.as_mut_ptr(), part.len()) }
    };
    let pending: Vec<_> = values.chunks_mut(30_000).map(|part| ends.reducer.start(bucket(part)).unwrap()).collect();
    ends.group.barrier().unwrap();
    pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
    for (i, value) in values.iter().enumerate() {
        assert_eq!(*value, (0..world).map(|rank| ((i + rank) % 100) as f32).sum::<f32>(), "element {i}");
    }
    jobs::write("sums", &world.to_string());
    ends.finish().unwrap();
}

/// Its communication thread answers no more, although NCCL would wait for ever.
#[test]
fn a_rank_that_is_stopped_inside_a_sum_is_named_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = job(3, "rank_that_is_stopped", folder.path());
    assert!(!output.status.success());
    for rank in 0..2 {
        let said = std::fs::read_to_string(folder.path().join(format!("noticed-{rank}")));
        let said = said.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        // Before or after all had come to the bucket.
        assert!(said.starts_with("reduction of a bucket"), "{said}");
        assert!(said.ends_with(": deadline exceeded, still waiting for rank 2"), "{said}");
    }
}

#[test]
fn rank_that_is_stopped() {
    let Some(mut ends) = as_rank_with_a_card() else { return };
    if ends.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 18];
    let (error, took) = loop {
        let begin = Instant::now();
        if let Err(error) = all_reduce(&mut *ends.reducer, &mut values, None) {
            break (error, begin.elapsed());
        }
    };
    assert!(took < STALL + STALL / 2 + GRACE, "{error} after {took:?}");
    jobs::write(&format!("noticed-{}", ends.group.rank()), &error.to_string());
    jobs::wait_for(&["noticed-0", "noticed-1"]);
}

#[test]
fn a_rank_that_is_killed_inside_a_sum_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = job(3, "rank_that_is_killed", folder.path());
    assert!(!output.status.success());
    assert!(took < GRACE, "the survivors waited for {took:?}");
}

#[test]
fn rank_that_is_killed() {
    let Some(mut ends) = as_rank_with_a_card() else { return };
    if ends.group.rank() == 1 {
        signal_self_after("KILL", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 18];
    loop {
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    }
}
