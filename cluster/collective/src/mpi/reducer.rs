use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::thread::{Request, gone};
use super::watch::Term;
use super::{Slot, lock};
use crate::{Bucket, Error, Pending, Place, Reducer, Result};

/// Hands buckets to the communication thread, which sums them in the background.
pub struct MpiReducer {
    requests: Sender<Request>,
    /// The number of the next bucket.
    next: u64,
}

impl MpiReducer {
    pub fn new(requests: Sender<Request>) -> Self {
        Self { requests, next: 0 }
    }
}

/// A bucket that the communication thread is summing.
struct Ticket {
    number: u64,
    slot: Slot,
    done: Receiver<Result<()>>,
    requests: Sender<Request>,
}

impl Reducer for MpiReducer {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn Pending>> {
        if bucket.place() != Place::Host {
            return Err(Error::Unreachable { reducer: "mpi", place: bucket.place() });
        }
        let count = bucket.count();
        let slot = Arc::new(Mutex::new(Some(bucket)));
        let (reply, done) = channel();
        self.requests.send(Request::Start { slot: slot.clone(), count, reply }).map_err(|_| gone())?;
        let number = self.next;
        self.next += 1;
        Ok(Box::new(Ticket { number, slot, done, requests: self.requests.clone() }))
    }
}

impl Pending for Ticket {
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        if let Some(end) = deadline {
            let now = Instant::now();
            let ask = now + end.saturating_duration_since(now) / 2;
            self.requests.send(Request::Limit(self.number, Term { ask, end })).map_err(|_| gone())?;
        }
        self.done.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// The communication thread touches a bucket only while it holds the slot; after this it is empty.
impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.slot).take();
    }
}
