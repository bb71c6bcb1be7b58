use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::library::Communicator;
use crate::{Bucket, Error, Pending, Place, Reducer, Result};

const OPERATION: &str = "reduction of a bucket";

/// Sums by `MPI_Allreduce`, in place. That call blocks and makes no progress beside other work, so a bucket is summed when
/// it, or one that was started after it, is awaited: in the order of the starts, whatever that of the waits.
pub struct MpiReducer(Arc<Started>);

/// Buckets that were started and not summed yet.
struct Started {
    communicator: Communicator,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The number of the first bucket in the queue.
    first: u64,
    /// In the order in which they were started; `None` where the reduction was given up.
    buckets: VecDeque<Option<Bucket>>,
}

struct Ticket {
    number: u64,
    started: Arc<Started>,
}

impl MpiReducer {
    pub fn new(communicator: Communicator) -> Self {
        Self(Arc::new(Started { communicator, queue: Mutex::default() }))
    }
}

impl Started {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sums the bucket at the head of the queue.
    fn sum_next(&self, queue: &mut Queue, deadline: Option<Instant>) -> Result<()> {
        if let Some(bucket) = queue.buckets.front_mut() {
            let given_up =
                || Error::Mismatch { operation: OPERATION, what: "one that was started was given up".into() };
            let values = bucket.as_mut().and_then(Bucket::values).ok_or_else(given_up)?;
            // Inside the call nothing can be given up: so all ranks must have come before.
            if let Some(deadline) = deadline {
                self.communicator.arrive(OPERATION, deadline)?;
            }
            self.communicator.all_reduce(values)?;
        }
        queue.buckets.pop_front();
        queue.first += 1;
        Ok(())
    }
}

impl Reducer for MpiReducer {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn Pending>> {
        if bucket.place() != Place::Host {
            return Err(Error::Unreachable { reducer: "mpi", place: bucket.place() });
        }
        let mut queue = self.0.queue();
        let number = queue.first + queue.buckets.len() as u64;
        queue.buckets.push_back(Some(bucket));
        Ok(Box::new(Ticket { number, started: self.0.clone() }))
    }
}

impl Pending for Ticket {
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        let mut queue = self.started.queue();
        while queue.first <= self.number {
            self.started.sum_next(&mut queue, deadline)?;
        }
        Ok(())
    }
}

/// A bucket whose reduction was given up is not touched again.
impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.started.queue();
        let place = self.number.checked_sub(queue.first).map(|place| place as usize);
        if let Some(bucket) = place.and_then(|place| queue.buckets.get_mut(place)) {
            *bucket = None;
        }
    }
}
