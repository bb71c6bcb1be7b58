//! Tests of the NCCL backend with a fake NCCL library and with fake GPUs, whose streams run late (fake_gpu/mod.rs).
//! Ranks are threads. The tests check the calls to NCCL, their order and the error handling, not NCCL itself.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod fake_gpu;
mod fake_ras;
mod suite;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fake_gpu::{FakeGpu, FakeNccl, HostAsDevice, faults};
use fake_ras::Service;
use lambert_collective::nccl::{self, NcclLibrary, NcclOptions, WireFormat};
use lambert_collective::{Bucket, Endpoints, Error, PendingAllReduce, Result, all_reduce, local};

const STALL: Duration = Duration::from_millis(600);

/// Margin by which an operation may exceed a timeout on a busy machine.
const TOLERANCE: Duration = Duration::from_secs(3);

fn options(wire: WireFormat) -> NcclOptions {
    NcclOptions { connect_timeout: STALL, stall_timeout: STALL, wire, ras: None }
}

/// Timeout of tests in which nothing fails.
const LONG_TIMEOUT: Duration = Duration::from_secs(15);

/// Initializes the NCCL backend of a rank on `gpu`.
fn init(mut endpoints: Endpoints, nccl: &FakeNccl, gpu: FakeGpu, options: NcclOptions) -> Result<Endpoints> {
    let reducer = nccl::init(&mut *endpoints.group, endpoints.reducer, &nccl.library, gpu, options)?;
    Ok(Endpoints { group: endpoints.group, reducer: Box::new(HostAsDevice(reducer)) })
}

/// Runs `rank_body` in a thread per rank and returns the results.
fn run<T: Send + 'static>(
    nccl: &Arc<FakeNccl>,
    (world, seed): (usize, u64),
    options: NcclOptions,
    rank_body: impl Fn(Result<Endpoints>, &FakeGpu) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let rank_body = Arc::new(rank_body);
    let rank = |(rank, endpoints): (usize, Endpoints)| {
        let (nccl, rank_body, options) = (nccl.clone(), rank_body.clone(), options.clone());
        thread::spawn(move || {
            let gpu = FakeGpu::new(seed * 97 + rank as u64);
            let result = rank_body(init(endpoints, &nccl, gpu.clone(), options), &gpu);
            gpu.stop();
            result
        })
    };
    let threads: Vec<_> = local::group(world).into_iter().enumerate().map(rank).collect();
    let begin = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(begin.elapsed() < 2 * LONG_TIMEOUT, "a rank hangs");
        thread::sleep(Duration::from_millis(5));
    }
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn the_suite_passes_with_one_to_four_ranks() {
    let run_suite = |world: usize, wire: WireFormat, rounding: f64| {
        thread::spawn(move || {
            let nccl = Arc::new(FakeNccl::load());
            let body = move |endpoints: Result<Endpoints>, _: &FakeGpu| {
                let mut endpoints = endpoints.unwrap();
                let digest = suite::run_all_checks(&mut endpoints, rounding);
                endpoints.finish().unwrap();
                digest
            };
            let options = NcclOptions { stall_timeout: LONG_TIMEOUT, ..options(wire) };
            let first = run(&nccl, (world, 1), options.clone(), body);
            // With another seed, the GPUs run their work in another order.
            assert_eq!(first, run(&nccl, (world, 2), options, body));
            for rank in 0..world {
                let [aborts, invalid, launches] = nccl.counts(rank);
                let is_expected = (aborts, invalid) == (0, 0) && launches > 50;
                assert!(is_expected, "{aborts} aborts, {invalid} invalid calls, {launches} launches");
            }
        })
    };
    let f32_runs = (1..=4).map(|ranks| run_suite(ranks, WireFormat::F32, suite::F32));
    let threads: Vec<_> = f32_runs.chain([2, 3].map(|ranks| run_suite(ranks, WireFormat::Bf16, suite::BF16))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Memory of a fake GPU.
type GpuMemory = Arc<Mutex<Vec<f32>>>;

fn bucket(memory: &GpuMemory, first: usize, count: usize) -> Bucket {
    // SAFETY: the vector never moves. Only the streams of the GPU access it until the all-reduces have been waited for.
    unsafe { Bucket::device(memory.lock().unwrap()[first..].as_mut_ptr(), count, 0) }
}

/// Two training steps like those of the engine. A bucket is started as soon as the computation of its gradients is
/// *enqueued*. Its sums are read after waiting for the bucket. The next step writes new gradients to the same memory.
fn two_steps(endpoints: Result<Endpoints>, gpu: &FakeGpu) -> Vec<f32> {
    const PART: usize = 700;
    const PARTS: usize = 6;
    let mut endpoints = endpoints.unwrap();
    let (rank, memory) = (endpoints.group.rank(), GpuMemory::new(Mutex::new(vec![0.0; PART * PARTS])));
    let mut sums = Vec::new();
    for step in 0..2 {
        let start = |part: usize| {
            for half in 0..2 {
                let (memory, first) = (memory.clone(), part * PART + half * PART / 2);
                gpu.compute(move || {
                    let value = |i: usize| ((step + 1) * (i % 50) + rank) as f32;
                    let mut memory = memory.lock().unwrap();
                    (first..first + PART / 2).for_each(|i| memory[i] = value(i));
                });
            }
            endpoints.reducer.start(bucket(&memory, part * PART, PART)).unwrap()
        };
        let pending: Vec<Box<dyn PendingAllReduce>> = (0..PARTS).map(start).collect();
        pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
        sums.extend_from_slice(&memory.lock().unwrap());
    }
    endpoints.finish().unwrap();
    sums
}

#[test]
fn sums_include_all_gradients_enqueued_before_the_start() {
    let nccl = Arc::new(FakeNccl::load());
    for seed in 0..8 {
        for world in 2..=4 {
            let value = |step: usize, i: usize| (world * (step + 1) * (i % 50) + world * (world - 1) / 2) as f32;
            let expected: Vec<f32> = (0..2).flat_map(|step| (0..4200).map(move |i| value(step, i))).collect();
            for wire in [WireFormat::F32, WireFormat::Bf16] {
                let options = NcclOptions { stall_timeout: LONG_TIMEOUT, ..options(wire) };
                for sums in run(&nccl, (world, seed), options, two_steps) {
                    // bf16 represents integers exactly up to 256.
                    let is_close =
                        |(a, b): (&f32, &f32)| a == b || wire == WireFormat::Bf16 && (a / b - 1.0).abs() < 0.02;
                    assert!(sums.iter().zip(&expected).all(is_close), "world {world}, seed {seed}, {wire:?}");
                }
            }
        }
    }
}

/// Sums one bucket, which must fail. Returns the error and the duration.
fn failing_sum(endpoints: Result<Endpoints>, deadline: Option<Duration>) -> (String, Duration) {
    let mut endpoints = endpoints.unwrap();
    let start = Instant::now();
    let deadline = deadline.map(|limit| start + limit);
    let error = all_reduce(&mut *endpoints.reducer, &mut vec![1.0; 100_000], deadline).unwrap_err();
    let took = start.elapsed();
    // The group stays unusable and returns the same error.
    let again = all_reduce(&mut *endpoints.reducer, &mut [1.0], None).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    (error.to_string(), took)
}

fn assert_aborted_once(nccl: &FakeNccl, ranks: std::ops::Range<usize>) {
    for rank in ranks {
        let [aborts, invalid, _] = nccl.counts(rank);
        assert_eq!((aborts, invalid), (1, 0), "rank {rank}: aborts, invalid calls");
    }
}

#[test]
fn an_asynchronous_error_fails_the_sum_at_once_and_on_other_ranks_by_timeout() {
    let nccl = Arc::new(FakeNccl::load());
    nccl.inject_fault(1, faults::REMOTE);
    let results = run(&nccl, (3, 5), options(WireFormat::F32), |endpoints, _| failing_sum(endpoints, None));
    let (error, took) = &results[1];
    let expected = "NCCL all-reduce failed: NCCL error 6: remote process exited or there was a network error (peer closed the \
                    connection)";
    assert_eq!(error, expected);
    assert!(*took < STALL, "detected after {took:?}");
    for (error, took) in [&results[0], &results[2]] {
        // The error is that rank 1 has left the group or that NCCL makes no progress.
        assert!(error.contains("rank 1 has left") || error.contains("deadline exceeded"), "{error}");
        assert!(*took < 2 * STALL + TOLERANCE, "{error} after {took:?}");
    }
    assert_aborted_once(&nccl, 0..3);
}

#[test]
fn a_stuck_sum_is_aborted_by_timeout_even_if_the_abort_hangs() {
    let nccl = Arc::new(FakeNccl::load());
    nccl.inject_fault(0, faults::STUCK);
    nccl.inject_fault(1, faults::STUCK | faults::SLOW_ABORT);
    let results = run(&nccl, (2, 6), options(WireFormat::F32), |endpoints, gpu| {
        (failing_sum(endpoints, None), gpu.was_entered_by("nccl-abort"))
    });
    for (rank, ((error, took), was_entered)) in results.iter().enumerate() {
        assert!(was_entered, "the abort would create a context on GPU 0");
        assert!(error.ends_with("NCCL bucket all-reduce: deadline exceeded, still waiting for other ranks"), "{error}");
        assert!(*took >= STALL && *took < 2 * STALL + TOLERANCE, "rank {rank} after {took:?}");
    }
    assert_aborted_once(&nccl, 0..2);
}

/// Rank 0 does not get the last bytes of a sum that rank 1 completes. Rank 1 then waits with its next bucket.
#[test]
fn a_rank_in_the_next_sum_learns_that_the_last_one_has_stalled() {
    let nccl = Arc::new(FakeNccl::load());
    nccl.inject_fault(0, faults::UNREAD);
    let errors = run(&nccl, (2, 17), options(WireFormat::F32), |endpoints, _| {
        let mut endpoints = endpoints.unwrap();
        let mut sum = || all_reduce(&mut *endpoints.reducer, &mut [1.0; 10], None);
        sum().and_then(|()| sum()).unwrap_err().to_string()
    });
    let stalled = "NCCL bucket all-reduce: deadline exceeded, still waiting for other ranks";
    assert_eq!(errors[0], stalled);
    assert_eq!(errors[1], format!("{stalled}; another rank reports that an earlier all-reduce makes no progress"));
}

/// All ranks have started the bucket and respond. Only NCCL knows which rank is behind.
#[test]
fn the_ras_service_names_the_rank_that_is_behind() {
    let stuck = |service: Service| {
        let nccl = Arc::new(FakeNccl::load());
        (0..2).for_each(|rank| nccl.inject_fault(rank, faults::STUCK));
        let address = fake_ras::start(service);
        let options = NcclOptions { ras: Some(address.clone()), ..options(WireFormat::F32) };
        let results = run(&nccl, (2, 16), options, |endpoints, _| failing_sum(endpoints, None));
        let [(one, took), (other, _)] = &results[..] else { panic!("{results:?}") };
        assert!(one == other && *took < 2 * STALL + TOLERANCE, "{results:?}");
        one.replace(&address, "ADDRESS")
    };
    let (process, start) = (std::process::id(), "NCCL bucket all-reduce: deadline exceeded, still waiting for");
    assert_eq!(
        stuck(Service::Answers(fake_ras::communicator(&[7, 6]))),
        format!(
            "{start} rank 1; NCCL's RAS service: rank 1 (host 127.0.0.1, process {process}, GPU 1) has started 6 of 7 AllReduce \
             operations"
        )
    );
    let shared = stuck(Service::Shared(5, fake_ras::communicator(&[7, 6])));
    assert!(shared.contains("still waiting for rank 1; NCCL's RAS service: rank 1 "), "{shared}");
    assert_eq!(
        stuck(Service::Answers(fake_ras::communicator(&[7, 7]))),
        format!("{start} other ranks; NCCL's RAS service: all ranks have started the same operations")
    );
    let start = format!("{start} other ranks; NCCL's RAS service at ADDRESS: ");
    for (service, expected) in [
        (
            Service::Answers(fake_ras::communicator(&[7])),
            "it does not know this rank: it may be the service of another job",
        ),
        (Service::Answers("no JSON".to_owned()), "its answer is not the JSON of NCCL: "),
        (Service::Answers("{".to_owned()), "it closed the connection in the middle of an answer"),
        (
            Service::WithoutJson,
            r#"it answered "ERROR: Unknown command" to "SET FORMAT json"; expected NCCL 2.28.7 or later"#,
        ),
        (Service::Hangs, "it did not answer within 0.1 s"),
    ] {
        let error = stuck(service);
        assert!(error.starts_with(&format!("{start}{expected}")), "{error}");
    }
}

/// The stall timeout starts when all ranks have started the bucket.
#[test]
fn a_straggler_is_waited_for_and_a_rank_that_never_arrives_is_named() {
    let nccl = Arc::new(FakeNccl::load());
    let late = run(&nccl, (2, 7), options(WireFormat::F32), |endpoints, _| {
        let mut endpoints = endpoints.unwrap();
        if endpoints.group.rank() == 1 {
            thread::sleep(2 * STALL);
        }
        let mut values = [1.0; 10];
        let summed = all_reduce(&mut *endpoints.reducer, &mut values, None).map(|()| values[9]);
        endpoints.finish().unwrap();
        summed.unwrap()
    });
    assert_eq!(late, [2.0, 2.0]);
    let never = run(&nccl, (3, 8), options(WireFormat::F32), |endpoints, _| {
        let mut endpoints = endpoints.unwrap();
        if endpoints.group.rank() < 2 {
            suite::a_rank_that_never_arrives_is_detected(&mut endpoints);
        }
        // No rank may leave before all ranks have made their check.
        thread::sleep(Duration::from_secs(1));
    });
    assert_eq!(never.len(), 3);
    assert_aborted_once(&nccl, 0..2);
}

/// The device computes for longer than the stall timeout.
#[test]
fn long_computation_does_not_time_out() {
    let nccl = Arc::new(FakeNccl::load());
    let summed = run(&nccl, (2, 9), options(WireFormat::F32), |endpoints, gpu| {
        let mut endpoints = endpoints.unwrap();
        gpu.compute(|| thread::sleep(2 * STALL));
        let mut values = [3.0; 4];
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
        endpoints.finish().unwrap();
        values
    });
    assert_eq!(summed, [[6.0; 4]; 2]);
}

#[test]
fn buckets_of_different_lengths_are_reported() {
    let nccl = Arc::new(FakeNccl::load());
    let results = run(&nccl, (2, 10), options(WireFormat::F32), |endpoints, _| {
        let mut endpoints = endpoints.unwrap();
        let mut values = vec![1.0; 5000 + endpoints.group.rank()];
        all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap_err().to_string()
    });
    assert_eq!(results[0], "NCCL bucket all-reduce: 5000 values on this rank, a different number on another rank");
    assert_eq!(results[1], "NCCL bucket all-reduce: 5001 values on this rank, a different number on another rank");
}

#[test]
fn a_canceled_bucket_is_not_accessed_again() {
    let nccl = Arc::new(FakeNccl::load());
    run(&nccl, (2, 11), options(WireFormat::F32), |endpoints, _| {
        let mut endpoints = endpoints.unwrap();
        let mut values = vec![1.0f32; 1 << 20];
        // SAFETY: `values` is accessed only after the all-reduce has been dropped.
        let bucket = unsafe { Bucket::device(values.as_mut_ptr(), values.len(), 0) };
        drop(endpoints.reducer.start(bucket).unwrap());
        values.fill(0.5);
        thread::sleep(Duration::from_millis(200));
        assert!(values.iter().all(|value| *value == 0.5), "the bucket was accessed after cancellation");
    });
    assert_aborted_once(&nccl, 0..2);
}

#[test]
fn initialization_errors_contain_the_text_of_nccl() {
    let nccl = Arc::new(FakeNccl::load());
    nccl.inject_fault(1, faults::NO_INIT);
    let start = Instant::now();
    let results = run(&nccl, (2, 12), options(WireFormat::F32), |endpoints, _| endpoints.map(drop).err());
    assert!(start.elapsed() < STALL + TOLERANCE);
    let error = results[1].as_ref().unwrap();
    let expected = "ncclCommInitRankConfig failed: NCCL error 2: unhandled system error (no route to host)";
    assert!(error.to_string() == expected && !error.is_nccl_unsupported(), "{error}");
    let nccl = Arc::new(FakeNccl::load());
    nccl.inject_fault(0, faults::REFUSED);
    let results = run(&nccl, (1, 13), options(WireFormat::F32), |endpoints, _| {
        all_reduce(&mut *endpoints.unwrap().reducer, &mut [1.0], None).unwrap_err()
    });
    assert!(results[0].is_nccl_unsupported(), "{}", results[0]);
    assert_eq!(results[0].to_string(), "ncclAllReduce failed: NCCL error 5: invalid usage (refused by the test)");
}

#[test]
fn initialization_times_out_if_a_rank_does_not_connect() {
    let nccl = Arc::new(FakeNccl::load());
    let start = Instant::now();
    let results = run(&nccl, (2, 14), options(WireFormat::F32), |endpoints, _| endpoints.is_ok());
    assert_eq!(results, [true, true]);
    // Rank 1 receives the unique ID but does not initialize NCCL.
    let mut endpoints = local::group(2);
    let mut gone = endpoints.pop().unwrap();
    let alone = endpoints.pop().unwrap();
    let other = thread::spawn(move || gone.group.broadcast_bytes(&mut Vec::new(), 0).map(|()| gone));
    let other_limit = NcclOptions { stall_timeout: LONG_TIMEOUT, ..options(WireFormat::F32) };
    let result = init(alone, &nccl, FakeGpu::new(1), other_limit);
    let Err(error) = result else { panic!("initialization succeeded without rank 1") };
    assert_eq!(error.to_string(), "ncclCommInitRankConfig: deadline exceeded, still waiting for other ranks");
    assert!(start.elapsed() < 2 * STALL + TOLERANCE);
    drop(other.join().unwrap());
}

#[test]
fn a_missing_or_invalid_library_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let folders = [directory.path().join("a"), directory.path().join("b")];
    let Err(error) = NcclLibrary::open(&folders) else { panic!("NCCL was found in a folder that does not exist") };
    let expected = format!("libnccl.so.2 (NCCL) not found in {}, {}", folders[0].display(), folders[1].display());
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, Error::NcclUnavailable(_)) && error.is_nccl_unsupported());
    std::fs::create_dir(&folders[1]).unwrap();
    std::fs::write(folders[1].join("libnccl.so.2"), "not a library").unwrap();
    let error = NcclLibrary::open(&folders).err().unwrap().to_string();
    assert!(error.starts_with("cannot load ") && error.contains("b/libnccl.so.2"), "{error}");
    let empty = folders[1].join("empty.c");
    std::fs::write(&empty, "int ncclGetVersion(int *version) { return *version = 2400, 0; }\n").unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(folders[1].join("libnccl.so.2")).arg(empty);
    assert!(compiler.status().unwrap().success());
    let error = NcclLibrary::open(&folders).err().unwrap().to_string();
    assert!(error.ends_with("libnccl.so.2 has no ncclGetUniqueId, expected NCCL 2.14 or later"), "{error}");
}

#[test]
fn setup_and_abort_are_logged_at_debug_level() {
    let nccl = FakeNccl::load();
    nccl.inject_fault(0, faults::REMOTE);
    enable_debug_events();
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let lines = lines.with_writer(log.reopen().unwrap()).finish();
    tracing::subscriber::with_default(lines, || {
        let gpu = FakeGpu::new(15);
        failing_sum(init(local::single(), &nccl, gpu.clone(), options(WireFormat::F32)), None);
        gpu.stop();
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    let aborted = "aborted backend=\"nccl\" error=NCCL all-reduce failed: NCCL error 6";
    for expected in ["all-reduce is set up backend=\"nccl\" rank=0 world=1", aborted] {
        assert_eq!(log.matches(expected).count(), 1, "{expected} in {log}");
    }
}

/// Enables debug events in all threads of this process. tracing disables an event for good if the first thread that
/// reaches the event has no subscriber. Tests run in parallel, so that thread can belong to another test.
fn enable_debug_events() {
    let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
    let _ = tracing::subscriber::set_global_default(discard.finish());
}
