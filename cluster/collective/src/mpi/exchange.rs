//! Whole messages of any length between ranks, cut into segments: what the operations of the group are made of. One that is
//! shorter than a segment ends the message.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::library::{Communicator, Transfer};
use crate::{Error, Result};

/// The most bytes of one segment.
const SEGMENT: usize = 1 << 20;

/// Messages between one pair of ranks arrive in order, and a rank does one operation of the group at a time, so one tag serves.
const TAG: usize = 0;

/// Messages that one rank sends and receives at the same time.
pub struct Exchange {
    /// The operation that they belong to, and its number.
    pub operation: (&'static str, u64),
    /// Each with the rank that it goes to.
    pub send: Vec<(usize, Arc<Vec<u8>>)>,
    /// The ranks that one is expected from.
    pub receive: Vec<usize>,
    /// Who gets the received messages, in the order of `receive`.
    pub reply: Sender<Result<Vec<Vec<u8>>>>,
}

/// An exchange under way.
pub struct Running {
    operation: (&'static str, u64),
    sending: Vec<Outgoing>,
    receiving: Vec<Incoming>,
    reply: Sender<Result<Vec<Vec<u8>>>>,
}

struct Outgoing {
    to: usize,
    bytes: Arc<Vec<u8>>,
    sent: usize,
    segment: Option<Transfer>,
    complete: bool,
}

struct Incoming {
    from: usize,
    bytes: Vec<u8>,
    segment: Option<Transfer>,
    complete: bool,
}

impl Running {
    pub fn new(exchange: Exchange) -> Self {
        let Exchange { operation, send, receive, reply } = exchange;
        let outgoing = |(to, bytes)| Outgoing { to, bytes, sent: 0, segment: None, complete: false };
        let incoming = |from| Incoming { from, bytes: Vec::new(), segment: None, complete: false };
        let (sending, receiving) =
            (send.into_iter().map(outgoing).collect(), receive.into_iter().map(incoming).collect());
        Self { operation, sending, receiving, reply }
    }

    /// The number of the operation.
    pub fn number(&self) -> u64 {
        self.operation.1
    }

    /// What the operation is called.
    pub fn operation(&self) -> &'static str {
        self.operation.0
    }

    /// Whether everything was sent and received.
    pub fn is_complete(&self) -> bool {
        self.sending.iter().all(|message| message.complete) && self.receiving.iter().all(|message| message.complete)
    }

    /// Goes on as far as messages have come; whether a segment is complete that was not before. `spare` is memory for segments,
    /// which is used again and again.
    pub fn progress(&mut self, communicator: &Communicator, spare: &mut Vec<Vec<u8>>) -> Result<bool> {
        let mut moved = false;
        for message in &mut self.receiving {
            while !message.complete && message.progress(communicator, self.operation.0, spare)? {
                moved = true;
            }
        }
        for message in &mut self.sending {
            while !message.complete && message.progress(communicator)? {
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Hands over what was received, or the error.
    pub fn end(self, result: Result<()>) {
        let received = self.receiving.into_iter().map(|message| message.bytes).collect();
        // Whoever no longer listens needs no answer.
        let _ = self.reply.send(result.map(|()| received));
    }
}

impl Outgoing {
    fn progress(&mut self, communicator: &Communicator) -> Result<bool> {
        let Some(segment) = &mut self.segment else {
            let bytes = &self.bytes[self.sent..self.bytes.len().min(self.sent + SEGMENT)];
            self.segment = Some(communicator.send(bytes.to_vec(), bytes.len(), self.to, TAG)?);
            return Ok(true);
        };
        if segment.poll()?.is_none() {
            return Ok(false);
        }
        self.segment = None;
        self.complete = self.bytes.len() - self.sent < SEGMENT;
        self.sent += SEGMENT.min(self.bytes.len() - self.sent);
        Ok(true)
    }
}

impl Incoming {
    fn progress(
        &mut self,
        communicator: &Communicator,
        operation: &'static str,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<bool> {
        let Some(segment) = &mut self.segment else {
            let buffer = spare.pop().unwrap_or_else(|| vec![0; SEGMENT]);
            self.segment = Some(communicator.receive(buffer, self.from, TAG)?);
            return Ok(true);
        };
        let Some(received) = segment.poll()? else { return Ok(false) };
        let buffer = self.segment.take().map(Transfer::into_buffer).unwrap_or_default();
        let refused = |_| Error::Mismatch { operation, what: format!("no memory for {received} bytes more") };
        self.bytes.try_reserve(received).map_err(refused)?;
        self.bytes.extend_from_slice(&buffer[..received]);
        spare.push(buffer);
        self.complete = received < SEGMENT;
        Ok(true)
    }
}
