//! The suite over threads, and what happens when one of them leaves, does not come or does something else.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod suite;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lambert_collective::{Endpoints, Error, all_reduce, local};

fn run<T: Send + 'static>(world: usize, rank_body: fn(Endpoints) -> T) -> Vec<T> {
    let threads: Vec<_> = local::group(world).into_iter().map(|ends| thread::spawn(move || rank_body(ends))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn the_suite_in_worlds_of_one_to_eight() {
    for world in [1, 2, 3, 4, 8] {
        let first = run(world, |mut ends| suite::everything(&mut ends, suite::F32));
        let again = run(world, |mut ends| suite::everything(&mut ends, suite::F32));
        assert_eq!(first, again);
    }
    suite::everything(&mut local::alone(), suite::F32);
}

#[test]
fn a_hundred_megabytes_between_two_threads() {
    run(2, |mut ends| suite::a_hundred_megabytes(&mut ends));
}

#[test]
fn a_rank_that_leaves_is_noticed_by_those_who_wait() {
    let leaves_and_others = |mut ends: Endpoints| match ends.group.rank() {
        1 => Ok(()),
        0 => all_reduce(&mut *ends.reducer, &mut [1.0], None),
        _ => ends.group.barrier(),
    };
    let results = run(3, leaves_and_others);
    assert!(results[1].is_ok());
    for waiting in [&results[0], &results[2]] {
        assert!(matches!(waiting, Err(Error::RankGone { .. })), "{waiting:?}");
    }
}

/// It has done its part: what it leaves behind is complete.
#[test]
fn a_rank_that_leaves_after_its_part_is_not_missed() {
    let results = run(3, |mut ends| {
        let late = Duration::from_millis(50 * ends.group.rank() as u64);
        thread::sleep(late);
        let pending = ends.reducer.start(bucket_of_one());
        // The first ranks leave before the last has come.
        if ends.group.rank() == 2 { pending.unwrap().wait(None) } else { pending.map(drop) }
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// A bucket that lives for ever.
fn bucket_of_one() -> lambert_collective::Bucket {
    let one = Box::leak(Box::new([1.0f32]));
    // SAFETY: leaked for this bucket alone.
    unsafe { lambert_collective::Bucket::host(one.as_mut_ptr(), 1) }
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let (sender, noticed) = mpsc::channel();
    let mut ends = local::group(3);
    let absent = ends.pop().unwrap();
    let threads = ends.into_iter().map(|mut ends| {
        let sender = sender.clone();
        thread::spawn(move || {
            suite::a_rank_that_never_comes_is_noticed(&mut ends);
            let again = all_reduce(&mut *ends.reducer, &mut [1.0], Some(Instant::now())).unwrap_err();
            sender.send(again.to_string()).unwrap();
            // The other one must not see this one leave.
            thread::sleep(Duration::from_millis(500));
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    drop(absent);
    let words: Vec<String> = noticed.try_iter().collect();
    assert_eq!(words.len(), 2);
    assert!(words.iter().all(|words| words.contains("deadline exceeded, still waiting for rank")), "{words:?}");
    assert!(words.iter().all(|words| words.ends_with("2")), "{words:?}");
}

#[test]
fn ranks_that_do_different_things_are_told() {
    let lengths = run(2, |mut ends| {
        let mut values = vec![1.0; 3 + ends.group.rank()];
        all_reduce(&mut *ends.reducer, &mut values, None)
    });
    assert!(lengths.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{lengths:?}");
    let operations = run(2, |mut ends| match ends.group.rank() {
        0 => ends.group.barrier(),
        _ => ends.group.all_reduce_sum_f64(&mut [1.0]),
    });
    assert!(operations.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{operations:?}");
}
