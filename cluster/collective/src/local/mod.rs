//! Backend for ranks that are threads of one process. Small runs use it with a single rank, tests with several ranks.

mod rendezvous;

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Instant;

use crate::group::check_root;
use crate::{Bucket, Endpoints, Error, Group, PendingAllReduce, Reducer, Result, events};
use rendezvous::{Participant, Rendezvous};

/// Creates a group of `world_size` ranks and returns the endpoints of each rank, in rank order. Each rank is a thread.
/// A rank leaves the group when its endpoints are dropped. Ranks that wait for this rank then get [`Error::RankGone`].
pub fn group(world_size: usize) -> Vec<Endpoints> {
    let [messages, buckets] = std::array::from_fn(|_| Arc::new(Rendezvous::new(world_size)));
    let endpoints = |rank| {
        events::joined("local", rank, world_size);
        Endpoints {
            group: Box::new(LocalGroup(Participant::new(rank, &messages))),
            reducer: Box::new(LocalReducer(Participant::new(rank, &buckets))),
        }
    };
    (0..world_size).map(endpoints).collect()
}

/// Creates a group of a single rank.
pub fn single() -> Endpoints {
    let [messages, buckets] = std::array::from_fn(|_| Participant::new(0, &Arc::new(Rendezvous::new(1))));
    Endpoints { group: Box::new(LocalGroup(messages)), reducer: Box::new(LocalReducer(buckets)) }
}

struct LocalGroup(Participant);

struct LocalReducer(Participant);

/// All-reduce that this rank has contributed to.
struct LocalAllReduce {
    round: rendezvous::Round,
    bucket: Bucket,
}

/// Writes the sum of `all` to `values`. Every rank adds the terms in rank order, so all ranks get the same bits.
fn sum<T: Copy + AddAssign>(operation: &'static str, all: &[Arc<Vec<T>>], values: &mut [T]) -> Result<()> {
    if let Some(other) = all.iter().find(|other| other.len() != values.len()) {
        let detail = format!("{} elements on this rank, {} on another rank", values.len(), other.len());
        return Err(Error::Mismatch { operation, detail });
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

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn name(&self) -> &'static str {
        "local"
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        const OPERATION: &str = "f64 all-reduce";
        let all = self.0.all_gather(OPERATION, values.to_vec())?;
        sum(OPERATION, &all, values)
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world_size())?;
        let own = if self.rank() == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.0.all_gather("broadcast", own)?;
        bytes.clone_from(&all[root]);
        Ok(())
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world_size())?;
        let all = self.0.all_gather("gather", bytes.to_vec())?;
        Ok((self.rank() == root).then(|| all.iter().map(|bytes| bytes.to_vec()).collect()))
    }

    fn all_gather_bytes(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let all = self.0.all_gather("all-gather", bytes)?;
        Ok(all.iter().map(|bytes| bytes.to_vec()).collect())
    }

    fn barrier(&mut self) -> Result<()> {
        self.0.all_gather("barrier", ()).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Reducer for LocalReducer {
    fn name(&self) -> &'static str {
        "local"
    }

    fn start(&mut self, mut bucket: Bucket) -> Result<Box<dyn PendingAllReduce>> {
        let location = bucket.location();
        let values = bucket.as_host_slice().ok_or(Error::UnsupportedLocation { reducer: "local", location })?.to_vec();
        let round = self.0.contribute("bucket all-reduce", values);
        Ok(Box::new(LocalAllReduce { round, bucket }))
    }
}

impl PendingAllReduce for LocalAllReduce {
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        let Self { round, mut bucket } = *self;
        let operation = round.operation();
        let all = round.collect(deadline)?;
        bucket.as_host_slice().map_or(Ok(()), |values| sum(operation, &all, values))
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
