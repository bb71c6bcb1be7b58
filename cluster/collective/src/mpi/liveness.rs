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

/// Reply to a probe.
pub struct ProbeReply {
    /// Rank that replied.
    pub rank: usize,
    /// ID of the probe.
    pub probe: u64,
    /// Numbers of operations and of buckets that the rank has started.
    pub started: StartedCounts,
}

/// Sends probes to the other ranks and replies to probes of the other ranks.
pub struct LivenessProbe {
    communicator: MpiCommunicator,
    /// Messages that MPI has not sent completely.
    sending: Vec<Transfer>,
    receiving: Option<(usize, Transfer)>,
    /// ID of the last probe.
    last_probe: u64,
}

impl LivenessProbe {
    pub fn new(communicator: MpiCommunicator) -> Self {
        Self { communicator, sending: Vec::new(), receiving: None, last_probe: 0 }
    }

    /// Sends a probe to all other ranks and returns its ID.
    pub fn send_probes(&mut self, rank: usize, world_size: usize) -> Result<u64> {
        self.last_probe += 1;
        for peer in (0..world_size).filter(|peer| *peer != rank) {
            self.send(peer, [PROBE, self.last_probe, 0, 0])?;
        }
        Ok(self.last_probe)
    }

    /// Handles one incoming message, if any. Replies to a probe with `started`, or returns a received reply.
    pub fn progress(&mut self, started: StartedCounts) -> Result<Option<ProbeReply>> {
        let sending = std::mem::take(&mut self.sending);
        for mut transfer in sending {
            if transfer.poll()?.is_none() {
                self.sending.push(transfer);
            }
        }
        if self.receiving.is_none()
            && let Some(from) = self.communicator.probe(TAG)?
        {
            self.receiving = Some((from, self.communicator.receive(vec![0; LENGTH], from, TAG)?));
        }
        let Some((_, transfer)) = &mut self.receiving else { return Ok(None) };
        if transfer.poll()?.is_none() {
            return Ok(None);
        }
        let Some((rank, transfer)) = self.receiving.take() else { return Ok(None) };
        let bytes = transfer.into_buffer();
        let mut numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let [kind, probe, group_operations, buckets] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        match kind {
            REPLY => return Ok(Some(ProbeReply { rank, probe, started: [group_operations, buckets] })),
            _ => self.send(rank, [REPLY, probe, started[0], started[1]])?,
        }
        Ok(None)
    }

    fn send(&mut self, to: usize, numbers: [u64; 4]) -> Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.sending.push(self.communicator.send(bytes, LENGTH, to, TAG)?);
        Ok(())
    }
}
