//! Conformance suite with threads as ranks, and tests of ranks that leave, do not arrive or call another operation.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod suite;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lambert_collective::{Endpoints, Error, all_reduce, local};

fn run<T: Send + 'static>(world: usize, rank_body: fn(Endpoints) -> T) -> Vec<T> {
    let threads: Vec<_> =
        local::group(world).into_iter().map(|endpoints| thread::spawn(move || rank_body(endpoints))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn the_suite_passes_with_one_to_eight_ranks() {
    for world in [1, 2, 3, 4, 8] {
        let first = run(world, |mut endpoints| suite::run_all_checks(&mut endpoints, suite::F32));
        let again = run(world, |mut endpoints| suite::run_all_checks(&mut endpoints, suite::F32));
        assert_eq!(first, again);
    }
    suite::run_all_checks(&mut local::single(), suite::F32);
}

#[test]
fn two_threads_sum_100_megabytes() {
    run(2, |mut endpoints| suite::sum_100_megabytes(&mut endpoints));
}

#[test]
fn waiting_ranks_detect_a_rank_that_leaves() {
    let rank_1_leaves = |mut endpoints: Endpoints| match endpoints.group.rank() {
        1 => Ok(()),
        0 => all_reduce(&mut *endpoints.reducer, &mut [1.0], None),
        _ => endpoints.group.barrier(),
    };
    let results = run(3, rank_1_leaves);
    assert!(results[1].is_ok());
    for waiting in [&results[0], &results[2]] {
        assert!(matches!(waiting, Err(Error::RankGone { .. })), "{waiting:?}");
    }
}

/// The other ranks need only the contribution of this rank. The rank has made its contribution before it leaves.
#[test]
fn a_rank_may_leave_after_its_contribution() {
    let results = run(3, |mut endpoints| {
        let late = Duration::from_millis(50 * endpoints.group.rank() as u64);
        thread::sleep(late);
        let pending = endpoints.reducer.start(leaked_bucket());
        // Ranks 0 and 1 leave before rank 2 starts.
        if endpoints.group.rank() == 2 { pending.unwrap().wait(None) } else { pending.map(drop) }
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// Bucket with one value that is never freed.
fn leaked_bucket() -> lambert_collective::Bucket {
    let value = Box::leak(Box::new([1.0f32]));
    // SAFETY: the value is leaked, and only this bucket uses it.
    unsafe { lambert_collective::Bucket::host(value.as_mut_ptr(), 1) }
}

#[test]
fn a_rank_that_never_arrives_is_named() {
    let (sender, errors) = mpsc::channel();
    let mut endpoints = local::group(3);
    let absent = endpoints.pop().unwrap();
    let threads = endpoints.into_iter().map(|mut endpoints| {
        let sender = sender.clone();
        thread::spawn(move || {
            suite::a_rank_that_never_arrives_is_detected(&mut endpoints);
            let again = all_reduce(&mut *endpoints.reducer, &mut [1.0], Some(Instant::now())).unwrap_err();
            sender.send(again.to_string()).unwrap();
            // The other rank must fail at its deadline, not because this rank leaves.
            thread::sleep(Duration::from_millis(500));
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    drop(absent);
    let errors: Vec<String> = errors.try_iter().collect();
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|error| error.contains("deadline exceeded, still waiting for rank")), "{errors:?}");
    assert!(errors.iter().all(|error| error.ends_with("2")), "{errors:?}");
}

#[test]
fn mismatched_calls_are_reported() {
    let lengths = run(2, |mut endpoints| {
        let mut values = vec![1.0; 3 + endpoints.group.rank()];
        all_reduce(&mut *endpoints.reducer, &mut values, None)
    });
    assert!(lengths.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{lengths:?}");
    let operations = run(2, |mut endpoints| match endpoints.group.rank() {
        0 => endpoints.group.barrier(),
        _ => endpoints.group.all_reduce_sum_f64(&mut [1.0]),
    });
    assert!(operations.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{operations:?}");
}
