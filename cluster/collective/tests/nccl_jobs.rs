//! Tests of the NCCL backend in real MPI processes, with a fake NCCL library (fake_gpu/fake_nccl.c). The unique ID is
//! broadcast over MPI, and MPI identifies unresponsive ranks. Each rank of a job runs a test named `rank_that_*`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "not used by every test program")]
mod fake_gpu;
mod jobs;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_gpu::{FakeGpu, HostAsDevice};
use jobs::{as_rank, file, mpirun, signal_self_after};
use lambert_collective::nccl::{self, NcclLibrary};
use lambert_collective::{Bucket, Endpoints, all_reduce, mpi};

const STALL: Duration = Duration::from_secs(1);

/// Margin by which an operation may exceed a timeout.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Runs `test` in each rank of a job that finds the fake NCCL library.
fn run_job(ranks: usize, test: &str, folder: &Path) -> (Output, Duration) {
    std::fs::create_dir(folder.join("lib")).unwrap();
    std::fs::copy(fake_gpu::compiled_library(), folder.join("lib/libnccl.so.2")).unwrap();
    mpirun(ranks, test, folder)
}

/// Initializes MPI and NCCL if this process is a rank of a job. Returns `None` otherwise.
fn as_rank_with_gpu() -> Option<Endpoints> {
    let mut endpoints =
        as_rank(mpi::MpiOptions { stall_timeout: STALL, straggler_timeout: 60 * STALL, ..mpi::MpiOptions::default() })?;
    let library = Arc::new(NcclLibrary::open(&[file("lib")]).unwrap());
    let gpu = FakeGpu::new(endpoints.group.rank() as u64);
    let options = nccl::NcclOptions { stall_timeout: STALL, ..nccl::NcclOptions::default() };
    let reducer = nccl::init(&mut *endpoints.group, endpoints.reducer, &library, gpu, options).unwrap();
    Some(Endpoints { group: endpoints.group, reducer: Box::new(HostAsDevice(reducer)) })
}

#[test]
fn two_to_four_processes_sum_their_buckets() {
    for ranks in [2, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let (output, _) = run_job(ranks, "rank_that_sums", folder.path());
        assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_to_string(folder.path().join("sums")).unwrap(), ranks.to_string());
    }
}

#[test]
fn rank_that_sums() {
    let Some(mut endpoints) = as_rank_with_gpu() else { return };
    let (rank, world) = (endpoints.group.rank(), endpoints.group.world_size());
    let mut values: Vec<f32> = (0..200_000).map(|i| ((i + rank) % 100) as f32).collect();
    let bucket = |part: &mut [f32]| {
        // SAFETY: `values` is accessed only after waiting for the all-reduces.
        unsafe { Bucket::host(part.as_mut_ptr(), part.len()) }
    };
    let pending: Vec<_> =
        values.chunks_mut(30_000).map(|part| endpoints.reducer.start(bucket(part)).unwrap()).collect();
    endpoints.group.barrier().unwrap();
    pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
    for (i, value) in values.iter().enumerate() {
        assert_eq!(*value, (0..world).map(|rank| ((i + rank) % 100) as f32).sum::<f32>(), "element {i}");
    }
    jobs::write("sums", &world.to_string());
    endpoints.finish().unwrap();
}

/// The communication thread of a stopped rank does not reply to probes. NCCL itself would wait forever.
#[test]
fn a_rank_that_is_stopped_inside_a_sum_is_named_after_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = run_job(3, "rank_that_is_stopped", folder.path());
    assert!(!output.status.success());
    for rank in 0..2 {
        let error = std::fs::read_to_string(folder.path().join(format!("error-{rank}")));
        let error = error.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        // The arrival check of MPI or the NCCL all-reduce fails, depending on when rank 2 was stopped.
        assert!(error.contains("bucket all-reduce: deadline exceeded, still waiting for rank 2"), "{error}");
    }
}

#[test]
fn rank_that_is_stopped() {
    let Some(mut endpoints) = as_rank_with_gpu() else { return };
    if endpoints.group.rank() == 2 {
        signal_self_after("STOP", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 18];
    let (error, took) = loop {
        let begin = Instant::now();
        if let Err(error) = all_reduce(&mut *endpoints.reducer, &mut values, None) {
            break (error, begin.elapsed());
        }
    };
    assert!(took < STALL + STALL / 2 + TOLERANCE, "{error} after {took:?}");
    jobs::write(&format!("error-{}", endpoints.group.rank()), &error.to_string());
    jobs::wait_for(&["error-0", "error-1"]);
}

#[test]
fn a_rank_that_is_killed_inside_a_sum_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let (output, took) = run_job(3, "rank_that_is_killed", folder.path());
    assert!(!output.status.success());
    assert!(took < TOLERANCE, "the other ranks exited after {took:?}");
}

#[test]
fn rank_that_is_killed() {
    let Some(mut endpoints) = as_rank_with_gpu() else { return };
    if endpoints.group.rank() == 1 {
        signal_self_after("KILL", Duration::from_millis(300));
    }
    let mut values = vec![1.0; 1 << 18];
    loop {
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
    }
}
