//! The operations of the group, as exchanges of messages that the communication thread carries out.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::exchange::Exchange;
use super::schedule::{Effect, doubling};
use super::thread::{Request, gone};
use super::tree::{self, Tree};
use crate::group::check_root;
use crate::{Error, Group, Result};

/// All ranks of the world.
pub struct MpiGroup {
    rank: usize,
    world: usize,
    requests: Sender<Request>,
    /// The number of the next operation.
    next: u64,
}

impl MpiGroup {
    pub fn new(rank: usize, world: usize, requests: Sender<Request>) -> Self {
        Self { rank, world, requests, next: 0 }
    }

    fn begin(&mut self, name: &'static str) -> Operation<'_> {
        let number = self.next;
        self.next += 1;
        Operation { name, number, requests: &self.requests }
    }
}

/// One operation of this rank.
struct Operation<'a> {
    name: &'static str,
    number: u64,
    requests: &'a Sender<Request>,
}

impl Operation<'_> {
    /// Sends and receives messages at the same time; what was received, in the order of `receive`.
    fn exchange(&self, send: Vec<(usize, Arc<Vec<u8>>)>, receive: Vec<usize>) -> Result<Vec<Vec<u8>>> {
        if send.is_empty() && receive.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, received) = channel();
        let exchange = Exchange { operation: (self.name, self.number), send, receive, reply };
        self.requests.send(Request::Exchange(exchange)).map_err(|_| gone())?;
        received.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// The same with at most one message received.
    fn step(&self, send: Option<usize>, bytes: Vec<u8>, receive: Option<usize>) -> Result<Option<Vec<u8>>> {
        let send = send.map(|to| (to, Arc::new(bytes))).into_iter().collect();
        Ok(self.exchange(send, receive.into_iter().collect())?.pop())
    }

    fn differs(&self, what: String) -> Error {
        Error::Mismatch { operation: self.name, what }
    }
}

impl Group for MpiGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        let steps = doubling(self.rank, self.world);
        let operation = self.begin("all-reduce of f64");
        for step in steps {
            let mut bytes = vec![0; 8 * values.len()];
            bytes.as_chunks_mut().0.iter_mut().zip(&*values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            let (send, receive) = (step.send.map(|to| to.peer), step.receive.map(|(from, _)| from.peer));
            let received = operation.step(send, bytes, receive)?;
            let (Some((from, effect)), Some(bytes)) = (step.receive, received) else { continue };
            if bytes.len() != 8 * values.len() {
                let (here, there) = (values.len(), bytes.len() / 8);
                return Err(operation.differs(format!("{here} elements here, {there} on rank {}", from.peer)));
            }
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                let other = f64::from_le_bytes(*bytes);
                *value = if effect == Effect::Keep { other } else { *value + other };
            }
        }
        Ok(())
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world)?;
        let Tree { parent, children } = tree::binomial(self.rank, self.world, root);
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
        check_root("gather", root, self.world)?;
        let (rank, world) = (self.rank, self.world);
        let Tree { parent, children } = tree::binomial(rank, world, root);
        let operation = self.begin("gather");
        let mut message = tree::packed(rank, bytes);
        for below in operation.exchange(Vec::new(), children)? {
            message.extend_from_slice(&below);
        }
        if let Some(parent) = parent {
            operation.exchange(vec![(parent, Arc::new(message))], Vec::new())?;
            return Ok(None);
        }
        tree::unpacked(&message, world).map(Some).ok_or_else(|| operation.differs("the messages do not fit".into()))
    }

    /// In round k each rank hears from the one 2^k before it: after the last round, from all.
    fn barrier(&mut self) -> Result<()> {
        let (rank, world) = (self.rank, self.world);
        let operation = self.begin("barrier");
        for distance in (0..usize::BITS).map(|round| 1 << round).take_while(|distance| *distance < world) {
            let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
            operation.step(Some(to), Vec::new(), Some(from))?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // MPI_Finalize waits for all ranks, without a limit.
        self.barrier()?;
        let (reply, finished) = channel();
        self.requests.send(Request::Finish(reply)).map_err(|_| gone())?;
        finished.recv().unwrap_or_else(|_| Err(gone()))
    }
}
