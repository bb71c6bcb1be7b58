//! Where are you? A question that the communication threads answer by themselves, whatever their ranks compute.

use super::library::{Communicator, Transfer};
use crate::Result;

const TAG: usize = 0;

/// Four little-endian u64: question or answer, the question's number, operations of the group and buckets that were started.
const LENGTH: usize = 32;

const QUESTION: u64 = 0;
const ANSWER: u64 = 1;

/// How many operations of the group, and how many buckets, a rank has started.
pub type Position = [u64; 2];

/// An answer that has come.
pub struct Answer {
    /// The rank that gave it.
    pub rank: usize,
    /// The number of the question.
    pub question: u64,
    /// Where the rank is.
    pub position: Position,
}

/// Questions and answers of one rank.
pub struct RollCall {
    communicator: Communicator,
    /// Messages that MPI is not done with.
    sent: Vec<Transfer>,
    receiving: Option<(usize, Transfer)>,
    questions: u64,
}

impl RollCall {
    pub fn new(communicator: Communicator) -> Self {
        Self { communicator, sent: Vec::new(), receiving: None, questions: 0 }
    }

    /// Asks all others; the question's number.
    pub fn ask(&mut self, rank: usize, world: usize) -> Result<u64> {
        self.questions += 1;
        for peer in (0..world).filter(|peer| *peer != rank) {
            self.send(peer, [QUESTION, self.questions, 0, 0])?;
        }
        Ok(self.questions)
    }

    /// Answers a question that has come, by `position`, or returns an answer that has; `None` where there is neither.
    pub fn progress(&mut self, position: Position) -> Result<Option<Answer>> {
        let sent = std::mem::take(&mut self.sent);
        for mut transfer in sent {
            if transfer.poll()?.is_none() {
                self.sent.push(transfer);
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
        let [kind, question, group, buckets] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
        match kind {
            ANSWER => return Ok(Some(Answer { rank, question, position: [group, buckets] })),
            _ => self.send(rank, [ANSWER, question, position[0], position[1]])?,
        }
        Ok(None)
    }

    fn send(&mut self, to: usize, numbers: [u64; 4]) -> Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.sent.push(self.communicator.send(bytes, LENGTH, to, TAG)?);
        Ok(())
    }
}
