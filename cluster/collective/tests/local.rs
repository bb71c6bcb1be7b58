//! The suite over threads, and what happens when one of them leaves or does something else.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod suite;

use std::thread;

use lambert_collective::{Collective, Error, local};

fn run<T: Send + 'static>(world: usize, rank_body: fn(local::Local) -> T) -> Vec<T> {
    let threads: Vec<_> = local::group(world).into_iter().map(|end| thread::spawn(move || rank_body(end))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn the_suite_in_worlds_of_one_two_three_and_five() {
    for world in [1, 2, 3, 5] {
        let first = run(world, |mut end| suite::everything(&mut end));
        let again = run(world, |mut end| suite::everything(&mut end));
        assert_eq!(first, again);
    }
    suite::everything(&mut local::alone());
}

#[test]
fn a_rank_that_leaves_is_noticed_by_those_who_wait() {
    let results = run(3, |mut end| if end.rank() == 1 { Ok(()) } else { end.all_reduce_sum_f32(&mut [1.0]) });
    assert!(results[1].is_ok());
    for waiting in [&results[0], &results[2]] {
        assert!(matches!(waiting, Err(Error::RankGone { .. })), "{waiting:?}");
    }
}

#[test]
fn ranks_that_do_different_things_are_told() {
    let lengths = run(2, |mut end| end.all_reduce_sum_f32(&mut vec![1.0; 3 + end.rank()]));
    assert!(lengths.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{lengths:?}");
    let operations = run(2, |mut end| if end.rank() == 0 { end.barrier() } else { end.all_reduce_sum_f64(&mut [1.0]) });
    assert!(operations.iter().all(|result| matches!(result, Err(Error::Mismatch { .. }))), "{operations:?}");
}
