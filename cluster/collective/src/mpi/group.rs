//! Operations of the group, composed of message exchanges that the communication thread runs.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::exchange::ExchangeRequest;
use super::schedule::{Combine, recursive_doubling};
use super::thread::{CommRequest, thread_exited};
use super::tree::{self, BinomialTree};
use crate::group::check_root;
use crate::{Error, Group, Result};

/// Group of all ranks of `MPI_COMM_WORLD`.
pub struct MpiGroup {
    rank: usize,
    world_size: usize,
    requests: Sender<CommRequest>,
    /// Number of the next operation.
    next: u64,
}

impl MpiGroup {
    pub fn new(rank: usize, world_size: usize, requests: Sender<CommRequest>) -> Self {
        Self { rank, world_size, requests, next: 0 }
    }

    fn begin(&mut self, name: &'static str) -> Operation<'_> {
        let number = self.next;
        self.next += 1;
        Operation { name, number, requests: &self.requests }
    }
}

/// Operation in flight on this rank.
struct Operation<'a> {
    name: &'static str,
    number: u64,
    requests: &'a Sender<CommRequest>,
}

impl Operation<'_> {
    /// Sends and receives messages concurrently. Returns the received messages in the order of `receive`.
    fn exchange(&self, send: Vec<(usize, Arc<Vec<u8>>)>, receive: Vec<usize>) -> Result<Vec<Vec<u8>>> {
        if send.is_empty() && receive.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, received) = channel();
        let exchange = ExchangeRequest { operation: (self.name, self.number), send, receive, reply };
        self.requests.send(CommRequest::Exchange(exchange)).map_err(|_| thread_exited())?;
        received.recv().unwrap_or_else(|_| Err(thread_exited()))
    }

    /// Sends at most one message and receives at most one message, concurrently.
    fn send_receive(&self, send: Option<usize>, bytes: Vec<u8>, receive: Option<usize>) -> Result<Option<Vec<u8>>> {
        let send = send.map(|to| (to, Arc::new(bytes))).into_iter().collect();
        Ok(self.exchange(send, receive.into_iter().collect())?.pop())
    }

    fn mismatch(&self, detail: String) -> Error {
        Error::Mismatch { operation: self.name, detail }
    }
}

impl Group for MpiGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        let steps = recursive_doubling(self.rank, self.world_size);
        let operation = self.begin("f64 all-reduce");
        for step in steps {
            let mut bytes = vec![0; 8 * values.len()];
            bytes.as_chunks_mut().0.iter_mut().zip(&*values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            let (send, receive) = (step.send.map(|to| to.rank), step.receive.map(|(from, _)| from.rank));
            let received = operation.send_receive(send, bytes, receive)?;
            let (Some((from, combine)), Some(bytes)) = (step.receive, received) else { continue };
            if bytes.len() != 8 * values.len() {
                let (here, there) = (values.len(), bytes.len() / 8);
                return Err(operation.mismatch(format!("{here} elements on this rank, {there} on rank {}", from.rank)));
            }
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                let other = f64::from_le_bytes(*bytes);
                *value = if combine == Combine::Store { other } else { *value + other };
            }
        }
        Ok(())
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world_size)?;
        let BinomialTree { parent, children } = tree::binomial(self.rank, self.world_size, root);
        let operation = self.begin("broadcast");
        if let Some(parent) = parent {
            *bytes = operation.exchange(Vec::new(), vec![parent])?.pop().unwrap_or_default();
        }
        let message = Arc::new(std::mem::take(bytes));
        let sent = operation.exchange(children.iter().map(|child| (*child, message.clone())).collect(), Vec::new());
        *bytes = Arc::unwrap_or_clone(message);
        sent.map(drop)
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world_size)?;
        let (rank, world_size) = (self.rank, self.world_size);
        let BinomialTree { parent, children } = tree::binomial(rank, world_size, root);
        let operation = self.begin("gather");
        let mut message = tree::pack(rank, bytes);
        for subtree in operation.exchange(Vec::new(), children)? {
            message.extend_from_slice(&subtree);
        }
        if let Some(parent) = parent {
            operation.exchange(vec![(parent, Arc::new(message))], Vec::new())?;
            return Ok(None);
        }
        tree::unpack(&message, world_size)
            .map(Some)
            .ok_or_else(|| operation.mismatch("malformed message: some rank is missing or occurs twice".into()))
    }

    /// Ring: in each round, each rank sends the bytes that it received last to the next rank.
    fn all_gather_bytes(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let (rank, world_size) = (self.rank, self.world_size);
        let before = |distance| (rank + world_size - distance) % world_size;
        let operation = self.begin("all-gather");
        let mut gathered: Vec<Arc<Vec<u8>>> = vec![Arc::default(); world_size];
        gathered[rank] = Arc::new(bytes);
        for round in 1..world_size {
            let send = vec![((rank + 1) % world_size, gathered[before(round - 1)].clone())];
            let received = operation.exchange(send, vec![before(1)])?.pop();
            gathered[before(round)] = Arc::new(received.unwrap_or_default());
        }
        Ok(gathered.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    /// Dissemination barrier. In round k, each rank sends to the rank 2^k after it and receives from the rank 2^k
    /// before it.
    fn barrier(&mut self) -> Result<()> {
        let (rank, world_size) = (self.rank, self.world_size);
        let operation = self.begin("barrier");
        for distance in (0..usize::BITS).map(|round| 1 << round).take_while(|distance| *distance < world_size) {
            let (to, from) = ((rank + distance) % world_size, (rank + world_size - distance) % world_size);
            operation.send_receive(Some(to), Vec::new(), Some(from))?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // MPI_Finalize blocks until all ranks call it. After the barrier, it takes long only if another rank has died.
        self.barrier()?;
        let (reply, finished) = channel();
        self.requests.send(CommRequest::Finalize(reply)).map_err(|_| thread_exited())?;
        match finished.recv_timeout(FINALIZE_TIMEOUT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(thread_exited()),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Deadline { operation: "MPI_Finalize", missing: Vec::new(), detail: String::new() })
            }
        }
    }
}

/// Maximum time of `MPI_Finalize`.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(20);
