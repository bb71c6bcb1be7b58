//! Point-to-point messages of any length. The operations of the group consist of such messages. A message is sent in
//! segments, and a segment that is shorter than the maximum ends the message.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::library::{MpiCommunicator, Transfer};
use crate::{Error, Result};

/// Maximum size of a segment, bytes.
const MAX_SEGMENT_BYTES: usize = 1 << 20;

/// One tag is sufficient, because messages between two ranks arrive in order and a rank runs one group operation at a
/// time.
const TAG: usize = 0;

/// Request to send and receive messages concurrently.
pub struct ExchangeRequest {
    /// Name and number of the operation of the group.
    pub operation: (&'static str, u64),
    /// Destination rank and content of each message to send.
    pub send: Vec<(usize, Arc<Vec<u8>>)>,
    /// Source ranks. One message is received from each rank.
    pub receive: Vec<usize>,
    /// Channel for the received messages, in the order of `receive`.
    pub reply: Sender<Result<Vec<Vec<u8>>>>,
}

/// Exchange in flight.
pub struct RunningExchange {
    operation: (&'static str, u64),
    sending: Vec<OutgoingMessage>,
    receiving: Vec<IncomingMessage>,
    reply: Sender<Result<Vec<Vec<u8>>>>,
}

struct OutgoingMessage {
    to: usize,
    bytes: Arc<Vec<u8>>,
    sent: usize,
    segment: Option<Transfer>,
    is_complete: bool,
}

struct IncomingMessage {
    from: usize,
    bytes: Vec<u8>,
    segment: Option<Transfer>,
    is_complete: bool,
}

impl RunningExchange {
    pub fn new(exchange: ExchangeRequest) -> Self {
        let ExchangeRequest { operation, send, receive, reply } = exchange;
        let outgoing = |(to, bytes)| OutgoingMessage { to, bytes, sent: 0, segment: None, is_complete: false };
        let incoming = |from| IncomingMessage { from, bytes: Vec::new(), segment: None, is_complete: false };
        let (sending, receiving) =
            (send.into_iter().map(outgoing).collect(), receive.into_iter().map(incoming).collect());
        Self { operation, sending, receiving, reply }
    }

    /// Number of the operation.
    pub fn number(&self) -> u64 {
        self.operation.1
    }

    /// Name of the operation.
    pub fn operation(&self) -> &'static str {
        self.operation.0
    }

    /// True if all messages have been sent and received.
    pub fn is_complete(&self) -> bool {
        self.sending.iter().all(|message| message.is_complete)
            && self.receiving.iter().all(|message| message.is_complete)
    }

    /// Advances all transfers without blocking. Returns true if a segment started or completed. `spare` is a pool of
    /// segment buffers.
    pub fn progress(&mut self, communicator: &MpiCommunicator, spare: &mut Vec<Vec<u8>>) -> Result<bool> {
        let mut has_progressed = false;
        for message in &mut self.receiving {
            while !message.is_complete && message.progress(communicator, self.operation.0, spare)? {
                has_progressed = true;
            }
        }
        for message in &mut self.sending {
            while !message.is_complete && message.progress(communicator)? {
                has_progressed = true;
            }
        }
        Ok(has_progressed)
    }

    /// Sends the received messages, or the error, to the caller.
    pub fn finish(self, result: Result<()>) {
        let received = self.receiving.into_iter().map(|message| message.bytes).collect();
        // Sending fails if the caller has dropped its receiver. Then the result is not needed.
        let _ = self.reply.send(result.map(|()| received));
    }
}

impl OutgoingMessage {
    fn progress(&mut self, communicator: &MpiCommunicator) -> Result<bool> {
        let Some(segment) = &mut self.segment else {
            let bytes = &self.bytes[self.sent..self.bytes.len().min(self.sent + MAX_SEGMENT_BYTES)];
            self.segment = Some(communicator.send(bytes.to_vec(), bytes.len(), self.to, TAG)?);
            return Ok(true);
        };
        if segment.poll()?.is_none() {
            return Ok(false);
        }
        self.segment = None;
        self.is_complete = self.bytes.len() - self.sent < MAX_SEGMENT_BYTES;
        self.sent += MAX_SEGMENT_BYTES.min(self.bytes.len() - self.sent);
        Ok(true)
    }
}

impl IncomingMessage {
    fn progress(
        &mut self,
        communicator: &MpiCommunicator,
        operation: &'static str,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<bool> {
        let Some(segment) = &mut self.segment else {
            let buffer = spare.pop().unwrap_or_else(|| vec![0; MAX_SEGMENT_BYTES]);
            self.segment = Some(communicator.receive(buffer, self.from, TAG)?);
            return Ok(true);
        };
        let Some(received) = segment.poll()? else { return Ok(false) };
        let buffer = self.segment.take().map(Transfer::into_buffer).unwrap_or_default();
        let out_of_memory = |_| {
            let detail = format!("out of memory: cannot allocate {received} more bytes for a received message");
            Error::Mismatch { operation, detail }
        };
        self.bytes.try_reserve(received).map_err(out_of_memory)?;
        self.bytes.extend_from_slice(&buffer[..received]);
        spare.push(buffer);
        self.is_complete = received < MAX_SEGMENT_BYTES;
        Ok(true)
    }
}
