use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::stall_detector::Deadline;
use super::thread::{CommRequest, thread_exited};
use super::{SharedBucket, lock};
use crate::{Bucket, Error, MemoryLocation, PendingAllReduce, Reducer, Result};

/// Passes buckets to the communication thread, which sums them in the background.
pub struct MpiReducer {
    requests: Sender<CommRequest>,
    /// Number of the next bucket.
    next: u64,
}

impl MpiReducer {
    pub fn new(requests: Sender<CommRequest>) -> Self {
        Self { requests, next: 0 }
    }
}

/// Bucket that the communication thread is summing.
struct MpiAllReduce {
    number: u64,
    bucket: SharedBucket,
    done: Receiver<Result<()>>,
    requests: Sender<CommRequest>,
}

impl Reducer for MpiReducer {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn PendingAllReduce>> {
        if bucket.location() != MemoryLocation::Host {
            return Err(Error::UnsupportedLocation { reducer: "mpi", location: bucket.location() });
        }
        let count = bucket.count();
        let bucket = Arc::new(Mutex::new(Some(bucket)));
        let (reply, done) = channel();
        let request = CommRequest::AllReduce { bucket: bucket.clone(), count, reply };
        self.requests.send(request).map_err(|_| thread_exited())?;
        let number = self.next;
        self.next += 1;
        Ok(Box::new(MpiAllReduce { number, bucket, done, requests: self.requests.clone() }))
    }
}

impl PendingAllReduce for MpiAllReduce {
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()> {
        if let Some(expires_at) = deadline {
            let now = Instant::now();
            let probe_at = now + expires_at.saturating_duration_since(now) / 2;
            let request = CommRequest::SetDeadline(self.number, Deadline { probe_at, expires_at });
            self.requests.send(request).map_err(|_| thread_exited())?;
        }
        self.done.recv().unwrap_or_else(|_| Err(thread_exited()))
    }
}

/// Takes the bucket away from the communication thread. That thread accesses the memory only while it has locked the
/// mutex, so it does not access the bucket any more.
impl Drop for MpiAllReduce {
    fn drop(&mut self) {
        lock(&self.bucket).take();
    }
}
