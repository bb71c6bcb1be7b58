//! Ranks as threads of one process: a world of one for small runs, worlds of several for tests.

mod meeting;

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Instant;

use crate::group::check_root;
use crate::{Bucket, Endpoints, Error, Group, Pending, Reducer, Result, events};
use meeting::{Meeting, Seat};

/// The `world` ends of a new group, in rank order, one for each thread. Dropping one leaves the group: whoever still waits
/// for it gets [`Error::RankGone`].
pub fn group(world: usize) -> Vec<Endpoints> {
    let [words, buckets] = std::array::from_fn(|_| Arc::new(Meeting::new(world)));
    let ends = |rank| {
        events::joined("local", rank, world);
        Endpoints {
            group: Box::new(LocalGroup(Seat::new(rank, &words))),
            reducer: Box::new(LocalReducer(Seat::new(rank, &buckets))),
        }
    };
    (0..world).map(ends).collect()
}

/// A world of one rank.
pub fn alone() -> Endpoints {
    let [words, buckets] = std::array::from_fn(|_| Seat::new(0, &Arc::new(Meeting::new(1))));
    Endpoints { group: Box::new(LocalGroup(words)), reducer: Box::new(LocalReducer(buckets)) }
}

struct LocalGroup(Seat);

struct LocalReducer(Seat);

/// A reduction whose values this rank has handed in.
struct Summing {
    round: meeting::Round,
    bucket: Bucket,
}

/// Sums in rank order on every rank, so that all get the same bits.
fn sum<T: Copy + AddAssign>(operation: &'static str, all: &[Arc<Vec<T>>], values: &mut [T]) -> Result<()> {
    if let Some(other) = all.iter().find(|other| other.len() != values.len()) {
        let what = format!("{} elements here, {} on another rank", values.len(), other.len());
        return Err(Error::Mismatch { operation, what });
    }
    values.copy_from_slice(&all[0]);
    for other in &all[1..] {
        values.iter_mut().zip(other.iter()).for_each(|(sum, &value)| *sum += value);
    }
    Ok(())
}

impl Group for LocalGroup {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world(&self) -> usize {
        self.0.world()
    }

    fn name(&self) -> &'static str {
        "local"
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        const OPERATION: &str = "all-reduce of f64";
        let all = self.0.exchange(OPERATION, values.to_vec())?;
        sum(OPERATION, &all, values)
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world())?;
        let own = if self.rank() == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.0.exchange("broadcast", own)?;
        bytes.clone_from(&all[root]);
        Ok(())
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world())?;
        let all = self.0.exchange("gather", bytes.to_vec())?;
        Ok((self.rank() == root).then(|| all.iter().map(|bytes| bytes.to_vec()).collect()))
    }

    fn barrier(&mut self) -> Result<()> {
        self.0.exchange("barrier", ()).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Reducer for LocalReducer {
    fn name(&self) -> &'static str {
        "local"
    }

    fn start(&mut self, mut bucket: Bucket) -> Result<Box<dyn Pending>> {
        let place = bucket.place();
        let values = bucket.values().ok_or(Error::Unreachable { reducer: "local", place })?.to_vec();
        let round = self.0.hand_in("reduction of a bucket", values);
        Ok(Box::new(Summing { round, bucket }))
    }
}

impl Pending for Summing {
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        let Self { round, mut bucket } = *self;
        let operation = round.operation();
        let all = round.collect(deadline)?;
        bucket.values().map_or(Ok(()), |values| sum(operation, &all, values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::logged;

    #[test]
    fn a_rank_that_has_left_is_logged_with_the_error() {
        let log = logged(|| {
            let mut ends = group(2);
            drop(ends.pop());
            assert!(ends[0].group.barrier().is_err());
        });
        let set_up = log.lines().filter(|line| line.contains("all-reduce is set up backend=\"local\""));
        assert_eq!(set_up.count(), 2, "{log}");
        assert!(log.contains("aborted backend=\"local\" error=barrier: rank 1 has left the group"), "{log}");
    }
}
