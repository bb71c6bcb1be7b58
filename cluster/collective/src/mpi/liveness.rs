//! Liveness probes. Communication threads reply to them even while their ranks compute.

use super::library::{MpiCommunicator, Transfer};
use crate::Result;

const TAG: usize = 0;

/// Size of a message, bytes. A message consists of four little-endian u64: kind, probe ID, number of started operations
/// of the group, number of started buckets.
const LENGTH: usize = 32;

/// Message kinds.
const PROBE: u64 = 0;
const REPLY: u64 = 1;

/// Number of operations of the group and number of buckets that a rank has started.
pub type StartedCounts = [u64; 2];

/// Message of a probe or of a reply: kind, probe ID, started counts.
type Message = [u64; 4];

/// Reply to a probe.
#[derive(Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// Rank that replied.
    pub rank: usize,
    /// ID of the probe.
    pub probe: u64,
    /// Numbers of operations and of buckets that the rank has started.
    pub started: StartedCounts,
}

/// Messages handled in one poll.
#[derive(Debug, Default)]
pub struct HandledMessages {
    /// Number of probes of other ranks that were answered.
    pub answered: usize,
    /// Replies to probes of this rank.
    pub replies: Vec<ProbeReply>,
}

impl HandledMessages {
    pub fn is_empty(&self) -> bool {
        self.answered == 0 && self.replies.is_empty()
    }
}

/// Transport of probes and replies.
pub trait ProbeTransport {
    /// Starts sending a message to rank `to`.
    fn send(&mut self, to: usize, message: Message) -> Result<()>;

    /// Returns the next message that has arrived, and its source rank. Never blocks.
    fn receive(&mut self) -> Result<Option<(usize, Message)>>;
}

/// Sends probes to the other ranks and replies to probes of the other ranks.
pub struct LivenessProbe<T = MpiTransport> {
    transport: T,
    /// ID of the last probe.
    last_probe: u64,
}

impl<T: ProbeTransport> LivenessProbe<T> {
    pub fn new(transport: T) -> Self {
        Self { transport, last_probe: 0 }
    }

    /// Sends a probe to all other ranks and returns its ID.
    pub fn send_probes(&mut self, rank: usize, world_size: usize) -> Result<u64> {
        self.last_probe += 1;
        for peer in (0..world_size).filter(|peer| *peer != rank) {
            self.transport.send(peer, [PROBE, self.last_probe, 0, 0])?;
        }
        Ok(self.last_probe)
    }

    /// Handles all messages that have arrived. Replies to probes with `started`. An idle rank polls rarely, and the probes of
    /// all other ranks may arrive between two polls.
    pub fn progress(&mut self, started: StartedCounts) -> Result<HandledMessages> {
        let mut handled = HandledMessages::default();
        while let Some((rank, [kind, probe, group_operations, buckets])) = self.transport.receive()? {
            if kind == REPLY {
                handled.replies.push(ProbeReply { rank, probe, started: [group_operations, buckets] });
            } else {
                self.transport.send(rank, [REPLY, probe, started[0], started[1]])?;
                handled.answered += 1;
            }
        }
        Ok(handled)
    }
}

/// Transport over MPI.
pub struct MpiTransport {
    communicator: MpiCommunicator,
    /// Messages that MPI has not sent completely.
    sending: Vec<Transfer>,
    receiving: Option<(usize, Transfer)>,
}

impl MpiTransport {
    pub fn new(communicator: MpiCommunicator) -> Self {
        Self { communicator, sending: Vec::new(), receiving: None }
    }

    /// Lets MPI send the messages that it has not sent completely.
    fn flush(&mut self) -> Result<()> {
        let sending = std::mem::take(&mut self.sending);
        for mut transfer in sending {
            if transfer.poll()?.is_none() {
                self.sending.push(transfer);
            }
        }
        Ok(())
    }
}

impl ProbeTransport for MpiTransport {
    fn send(&mut self, to: usize, message: Message) -> Result<()> {
        let bytes: Vec<u8> = message.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.sending.push(self.communicator.send(bytes, LENGTH, to, TAG)?);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(usize, Message)>> {
        if self.receiving.is_none()
            && let Some(from) = self.communicator.probe(TAG)?
        {
            self.receiving = Some((from, self.communicator.receive(vec![0; LENGTH], from, TAG)?));
        }
        let is_complete = match &mut self.receiving {
            Some((_, transfer)) => transfer.poll()?.is_some(),
            None => false,
        };
        let Some((rank, transfer)) = self.receiving.take_if(|_| is_complete) else {
            self.flush()?;
            return Ok(None);
        };
        let bytes = transfer.into_buffer();
        let mut numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        Ok(Some((rank, std::array::from_fn(|_| numbers.next().unwrap_or(0)))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Messages that have arrived, and messages that were sent.
    #[derive(Default)]
    struct Queues {
        arrived: VecDeque<(usize, Message)>,
        sent: Vec<(usize, Message)>,
    }

    impl ProbeTransport for Queues {
        fn send(&mut self, to: usize, message: Message) -> Result<()> {
            self.sent.push((to, message));
            Ok(())
        }

        fn receive(&mut self) -> Result<Option<(usize, Message)>> {
            Ok(self.arrived.pop_front())
        }
    }

    #[test]
    fn the_probes_of_all_ranks_are_answered_in_one_poll() {
        let mut idle = LivenessProbe::new(Queues::default());
        idle.transport.arrived = (1..512).map(|rank| (rank, [PROBE, 7, 0, 0])).collect();
        let handled = idle.progress([3, 4]).unwrap();
        assert_eq!((handled.answered, handled.replies.len(), handled.is_empty()), (511, 0, false));
        assert_eq!(idle.transport.sent, (1..512).map(|rank| (rank, [REPLY, 7, 3, 4])).collect::<Vec<_>>());
        assert!(idle.progress([3, 4]).unwrap().is_empty());
    }

    #[test]
    fn replies_between_probes_are_returned() {
        let mut waiting = LivenessProbe::new(Queues::default());
        assert_eq!(waiting.send_probes(1, 3).unwrap(), 1);
        assert_eq!(waiting.transport.sent, [(0, [PROBE, 1, 0, 0]), (2, [PROBE, 1, 0, 0])]);
        waiting.transport.arrived = [(0, [PROBE, 9, 0, 0]), (2, [REPLY, 1, 5, 6]), (0, [REPLY, 1, 8, 8])].into();
        let handled = waiting.progress([1, 1]).unwrap();
        let reply = |rank, started| ProbeReply { rank, probe: 1, started };
        assert_eq!((handled.answered, handled.replies), (1, vec![reply(2, [5, 6]), reply(0, [8, 8])]));
    }
}
