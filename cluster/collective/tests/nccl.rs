//! The backend over NCCL with a test library in NCCL's place and cards whose streams do their work late (cards/mod.rs), ranks being
//! threads: it proves our calls, their order and our ways out of errors, not NCCL.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod cards;
mod suite;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cards::{LazyCard, OnCard, TestLibrary, faults};
use lambert_collective::nccl::{self, Library, Options, Wire};
use lambert_collective::{Bucket, Endpoints, Error, Pending, Result, all_reduce, local};

const STALL: Duration = Duration::from_millis(600);

/// What the limit may be exceeded by, on a busy machine.
const GRACE: Duration = Duration::from_secs(3);

fn options(wire: Wire) -> Options {
    Options { stall: STALL, wire }
}

/// Where nothing is to fail.
const PATIENT: Duration = Duration::from_secs(15);

/// The end of a rank that sums on `card`.
fn join(mut ends: Endpoints, test: &TestLibrary, card: LazyCard, options: Options) -> Result<Endpoints> {
    let reducer = nccl::join(&mut *ends.group, ends.reducer, &test.library, card, options)?;
    Ok(Endpoints { group: ends.group, reducer: Box::new(OnCard(reducer)) })
}

/// What each rank of a world says.
fn run<T: Send + 'static>(
    test: &Arc<TestLibrary>,
    (world, seed): (usize, u64),
    options: Options,
    rank_body: impl Fn(Result<Endpoints>, &LazyCard) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let rank_body = Arc::new(rank_body);
    let rank = |(rank, ends): (usize, Endpoints)| {
        let (test, rank_body) = (test.clone(), rank_body.clone());
        thread::spawn(move || {
            let card = LazyCard::new(seed * 97 + rank as u64);
            let said = rank_body(join(ends, &test, card.clone(), options), &card);
            card.end();
            said
        })
    };
    let threads: Vec<_> = local::group(world).into_iter().enumerate().map(rank).collect();
    let begin = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(begin.elapsed() < 2 * PATIENT, "a rank hangs");
        thread::sleep(Duration::from_millis(5));
    }
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn the_suite_in_worlds_of_one_to_four() {
    let world = |world: usize, wire: Wire, rounding: f64| {
        thread::spawn(move || {
            let test = Arc::new(TestLibrary::load());
            let body = move |ends: Result<Endpoints>, _: &LazyCard| {
                let mut ends = ends.unwrap();
                let digest = suite::everything(&mut ends, rounding);
                ends.finish().unwrap();
                digest
            };
            let options = Options { stall: PATIENT, wire };
            let first = run(&test, (world, 1), options, body);
            // The cards do their work in another order.
            assert_eq!(first, run(&test, (world, 2), options, body));
            for rank in 0..world {
                let [aborts, misuses, launches] = test.counts(rank);
                assert!((aborts, misuses) == (0, 0) && launches > 50, "{aborts} aborts, {misuses}, {launches}");
            }
        })
    };
    let f32s = (1..=4).map(|ranks| world(ranks, Wire::F32, suite::F32));
    let threads: Vec<_> = f32s.chain([2, 3].map(|ranks| world(ranks, Wire::Bf16, suite::BF16))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Memory of a card.
type Memory = Arc<Mutex<Vec<f32>>>;

fn bucket(memory: &Memory, first: usize, count: usize) -> Bucket {
    // SAFETY: the memory lives in its Arc and never moves; the cards' streams are its only users until the sums are awaited.
    unsafe { Bucket::device(memory.lock().unwrap()[first..].as_mut_ptr(), count, 0) }
}

/// As the engine does it: gradients are computed late, each bucket is started when its gradients were *enqueued*, and read when
/// it was awaited. The next step computes new ones into the same memory.
fn two_steps(ends: Result<Endpoints>, card: &LazyCard) -> Vec<f32> {
    const PART: usize = 700;
    const PARTS: usize = 6;
    let mut ends = ends.unwrap();
    let (rank, memory) = (ends.group.rank(), Memory::new(Mutex::new(vec![0.0; PART * PARTS])));
    let mut seen = Vec::new();
    for step in 0..2 {
        let start = |part: usize| {
            for half in 0..2 {
                let (memory, first) = (memory.clone(), part * PART + half * PART / 2);
                card.compute(move || {
                    let value = |i: usize| ((step + 1) * (i % 50) + rank) as f32;
                    let mut memory = memory.lock().unwrap();
                    (first..first + PART / 2).for_each(|i| memory[i] = value(i));
                });
            }
            ends.reducer.start(bucket(&memory, part * PART, PART)).unwrap()
        };
        let pending: Vec<Box<dyn Pending>> = (0..PARTS).map(start).collect();
        pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
        seen.extend_from_slice(&memory.lock().unwrap());
    }
    ends.finish().unwrap();
    seen
}

#[test]
fn sums_are_of_what_was_enqueued_before_whatever_the_streams_do() {
    let test = Arc::new(TestLibrary::load());
    for seed in 0..8 {
        for world in 2..=4 {
            let value = |step: usize, i: usize| (world * (step + 1) * (i % 50) + world * (world - 1) / 2) as f32;
            let expected: Vec<f32> = (0..2).flat_map(|step| (0..4200).map(move |i| value(step, i))).collect();
            for wire in [Wire::F32, Wire::Bf16] {
                for seen in run(&test, (world, seed), Options { stall: PATIENT, wire }, two_steps) {
                    // bf16 holds integers up to 256.
                    let same = |(a, b): (&f32, &f32)| a == b || wire == Wire::Bf16 && (a / b - 1.0).abs() < 0.02;
                    assert!(seen.iter().zip(&expected).all(same), "world {world}, seed {seed}, {wire:?}");
                }
            }
        }
    }
}

/// One bucket; the error, and how long it took.
fn failing_sum(ends: Result<Endpoints>, deadline: Option<Duration>) -> (String, Duration) {
    let mut ends = ends.unwrap();
    let start = Instant::now();
    let until = deadline.map(|limit| start + limit);
    let error = all_reduce(&mut *ends.reducer, &mut vec![1.0; 100_000], until).unwrap_err();
    let took = start.elapsed();
    // It is of no use then, and says the same.
    let again = all_reduce(&mut *ends.reducer, &mut [1.0], None).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    (error.to_string(), took)
}

fn assert_aborted(test: &TestLibrary, ranks: std::ops::Range<usize>) {
    for rank in ranks {
        let [aborts, misuses, _] = test.counts(rank);
        assert_eq!((aborts, misuses), (1, 0), "rank {rank}: aborts, misuses");
    }
}

#[test]
fn an_asynchronous_error_ends_the_sum_at_once_and_those_of_the_others_in_time() {
    let test = Arc::new(TestLibrary::load());
    test.break_rank(1, faults::REMOTE);
    let said = run(&test, (3, 5), options(Wire::F32), |ends, _| failing_sum(ends, None));
    let (error, took) = &said[1];
    let expected = "all-reduce by NCCL failed: NCCL error 6: remote process exited or there was a network error (peer closed the \
                    connection)";
    assert_eq!(error, expected);
    assert!(*took < STALL, "noticed after {took:?}");
    for (error, took) in [&said[0], &said[2]] {
        // Rank 1 has left the group, or NCCL moves nothing.
        assert!(error.contains("rank 1 has left") || error.contains("deadline exceeded"), "{error}");
        assert!(*took < 2 * STALL + GRACE, "{error} after {took:?}");
    }
    assert_aborted(&test, 0..3);
}

#[test]
fn a_sum_that_moves_nothing_is_aborted_in_time_even_where_the_abort_hangs() {
    let test = Arc::new(TestLibrary::load());
    test.break_rank(0, faults::STUCK);
    test.break_rank(1, faults::STUCK | faults::SLOW_ABORT);
    let said = run(&test, (2, 6), options(Wire::F32), |ends, _| failing_sum(ends, None));
    for (rank, (error, took)) in said.iter().enumerate() {
        assert!(error.ends_with("by NCCL: deadline exceeded, still waiting for other ranks"), "{error}");
        assert!(*took >= STALL && *took < 2 * STALL + GRACE, "rank {rank} after {took:?}");
    }
    assert_aborted(&test, 0..2);
}

/// Not by NCCL's limit, which begins when all have come: a straggler is not hung.
#[test]
fn a_straggler_is_waited_for_and_a_rank_that_never_comes_is_named() {
    let test = Arc::new(TestLibrary::load());
    let late = run(&test, (2, 7), options(Wire::F32), |ends, _| {
        let mut ends = ends.unwrap();
        if ends.group.rank() == 1 {
            thread::sleep(2 * STALL);
        }
        let mut values = [1.0; 10];
        let summed = all_reduce(&mut *ends.reducer, &mut values, None).map(|()| values[9]);
        ends.finish().unwrap();
        summed.unwrap()
    });
    assert_eq!(late, [2.0, 2.0]);
    let never = run(&test, (3, 8), options(Wire::F32), |ends, _| {
        let mut ends = ends.unwrap();
        if ends.group.rank() < 2 {
            suite::a_rank_that_never_comes_is_noticed(&mut ends);
        }
        // Nobody leaves before all have looked.
        thread::sleep(Duration::from_secs(1));
    });
    assert_eq!(never.len(), 3);
    assert_aborted(&test, 0..2);
}

/// The device computes for longer than the limit: that is no stall of NCCL's.
#[test]
fn long_computing_is_no_stall() {
    let test = Arc::new(TestLibrary::load());
    let summed = run(&test, (2, 9), options(Wire::F32), |ends, card| {
        let mut ends = ends.unwrap();
        card.compute(|| thread::sleep(2 * STALL));
        let mut values = [3.0; 4];
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
        ends.finish().unwrap();
        values
    });
    assert_eq!(summed, [[6.0; 4]; 2]);
}

#[test]
fn buckets_of_different_lengths_are_told() {
    let test = Arc::new(TestLibrary::load());
    let said = run(&test, (2, 10), options(Wire::F32), |ends, _| {
        let mut ends = ends.unwrap();
        let mut values = vec![1.0; 5000 + ends.group.rank()];
        all_reduce(&mut *ends.reducer, &mut values, None).unwrap_err().to_string()
    });
    assert_eq!(said[0], "reduction of a bucket by NCCL: 5000 values here, not as many on another rank");
    assert_eq!(said[1], "reduction of a bucket by NCCL: 5001 values here, not as many on another rank");
}

#[test]
fn a_bucket_that_was_given_up_is_left_alone() {
    let test = Arc::new(TestLibrary::load());
    run(&test, (2, 11), options(Wire::F32), |ends, _| {
        let mut ends = ends.unwrap();
        let mut values = vec![1.0f32; 1 << 20];
        // SAFETY: `values` is touched only after the reduction was dropped.
        let bucket = unsafe { Bucket::device(values.as_mut_ptr(), values.len(), 0) };
        drop(ends.reducer.start(bucket).unwrap());
        values.fill(0.5);
        thread::sleep(Duration::from_millis(200));
        assert!(values.iter().all(|value| *value == 0.5), "a bucket was touched after it was given up");
    });
    assert_aborted(&test, 0..2);
}

#[test]
fn nccl_that_does_not_connect_is_told_with_its_own_words() {
    let test = Arc::new(TestLibrary::load());
    test.break_rank(1, faults::NO_INIT);
    let start = Instant::now();
    let said = run(&test, (2, 12), options(Wire::F32), |ends, _| ends.map(drop).err());
    assert!(start.elapsed() < STALL + GRACE);
    let error = said[1].as_ref().unwrap();
    let expected = "ncclCommInitRankConfig failed: NCCL error 2: unhandled system error (no route to host)";
    assert!(error.to_string() == expected && !error.is_refusal(), "{error}");
    let test = Arc::new(TestLibrary::load());
    test.break_rank(0, faults::REFUSED);
    let said = run(&test, (1, 13), options(Wire::F32), |ends, _| {
        all_reduce(&mut *ends.unwrap().reducer, &mut [1.0], None).unwrap_err()
    });
    assert!(said[0].is_refusal(), "{}", said[0]);
    assert_eq!(said[0].to_string(), "ncclAllReduce failed: NCCL error 5: invalid usage (refused by the test)");
}

#[test]
fn a_rank_alone_does_not_wait_for_ever_for_the_others_to_connect() {
    let test = Arc::new(TestLibrary::load());
    let start = Instant::now();
    let said = run(&test, (2, 14), options(Wire::F32), |ends, _| ends.is_ok());
    assert_eq!(said, [true, true]);
    // Rank 1 leaves before it joins.
    let mut ends = local::group(2);
    let mut gone = ends.pop().unwrap();
    let alone = ends.pop().unwrap();
    let other = thread::spawn(move || gone.group.broadcast_bytes(&mut Vec::new(), 0).map(|()| gone));
    let joined = join(alone, &test, LazyCard::new(1), options(Wire::F32));
    let Err(error) = joined else { panic!("a communicator of one in a world of two") };
    assert_eq!(error.to_string(), "ncclCommInitRankConfig: deadline exceeded, still waiting for other ranks");
    assert!(start.elapsed() < 2 * STALL + GRACE);
    drop(other.join().unwrap());
}

#[test]
fn a_library_that_is_missing_or_another_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let folders = [place.path().join("a"), place.path().join("b")];
    let Err(error) = Library::open(&folders) else { panic!("NCCL out of nowhere") };
    let said = error.to_string();
    let looked = format!("it is not in {}, {}", folders[0].display(), folders[1].display());
    assert!(said.starts_with("there is no libnccl.so.2 here") && said.ends_with(&looked), "{said}");
    assert!(matches!(error, Error::NoNccl(_)) && error.is_refusal());
    std::fs::create_dir(&folders[1]).unwrap();
    std::fs::write(folders[1].join("libnccl.so.2"), "no library").unwrap();
    let said = Library::open(&folders).err().unwrap().to_string();
    assert!(said.starts_with("cannot load ") && said.contains("b/libnccl.so.2"), "{said}");
    let empty = folders[1].join("empty.c");
    std::fs::write(&empty, "int ncclGetVersion(int *version) { return *version = 2400, 0; }\n").unwrap();
    let mut built = std::process::Command::new("cc");
    built.args(["-shared", "-fPIC", "-o"]).arg(folders[1].join("libnccl.so.2")).arg(empty);
    assert!(built.status().unwrap().success());
    let said = Library::open(&folders).err().unwrap().to_string();
    assert!(said.ends_with("libnccl.so.2 has no ncclGetUniqueId: NCCL 2.14 or later is needed"), "{said}");
}

#[test]
fn set_up_and_abort_are_logged_at_debug_level() {
    let test = TestLibrary::load();
    test.break_rank(0, faults::REMOTE);
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let lines = lines.with_writer(log.reopen().unwrap()).finish();
    tracing::subscriber::with_default(lines, || {
        let card = LazyCard::new(15);
        failing_sum(join(local::alone(), &test, card.clone(), options(Wire::F32)), None);
        card.end();
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    let aborted = "aborted backend=\"nccl\" error=all-reduce by NCCL failed: NCCL error 6";
    for expected in ["all-reduce is set up backend=\"nccl\" rank=0 world=1", aborted] {
        assert_eq!(log.matches(expected).count(), 1, "{expected} in {log}");
    }
}
