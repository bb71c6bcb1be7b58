//! Exactly-once, in-order delivery of messages and commands. This module has the state of both ends, but no transport.
//! It handles lost, repeated and delayed reports.

use std::collections::VecDeque;

use crate::{CoordinatorCommand, Directive, Message, SequencedMessage};

/// Maximum number of messages in a report.
const MAX_BATCH_MESSAGES: usize = 256;
/// Maximum serialized size of the messages in a report, bytes. This limit keeps reports below
/// [`crate::MAX_REPORT_BYTES`]. A longer single message is still sent, and the coordinator rejects it.
const MAX_BATCH_BYTES: usize = crate::MAX_REPORT_BYTES / 2;

/// Send queue of a worker, with the messages that the coordinator has not acknowledged.
#[derive(Debug, Default)]
pub struct Outbox {
    pending: VecDeque<SequencedMessage>,
    last: u64,
}

impl Outbox {
    /// Appends a message with the next sequence number.
    pub fn push(&mut self, message: Message) {
        self.last += 1;
        self.pending.push_back(SequencedMessage { number: self.last, message });
    }

    /// Returns the oldest unacknowledged messages, as many as fit into one report.
    pub fn batch(&self) -> Vec<SequencedMessage> {
        let mut bytes = 0;
        let mut fits = |message: &&SequencedMessage| {
            let is_first = bytes == 0;
            bytes += serde_json::to_vec(message).map_or(0, |text| text.len());
            is_first || bytes <= MAX_BATCH_BYTES
        };
        self.pending.iter().take(MAX_BATCH_MESSAGES).take_while(|message| fits(message)).cloned().collect()
    }

    /// Removes all messages up to and including `number`.
    pub fn acknowledge(&mut self, number: u64) {
        while self.pending.front().is_some_and(|oldest| oldest.number <= number) {
            self.pending.pop_front();
        }
    }

    /// True if every message has been acknowledged.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Receive state of the messages of one worker.
#[derive(Debug, Default)]
pub struct Inbox {
    last: u64,
}

impl Inbox {
    /// Returns the new messages. Drops messages after a gap, because the worker resends them.
    pub fn accept(&mut self, messages: Vec<SequencedMessage>) -> Vec<Message> {
        let mut new = Vec::new();
        for SequencedMessage { number, message } in messages {
            if number == self.last + 1 {
                self.last = number;
                new.push(message);
            }
        }
        new
    }

    /// Sequence number of the last message received in order.
    pub fn acknowledged(&self) -> u64 {
        self.last
    }
}

/// Slot in which the control thread passes the newest command to the training thread.
#[derive(Debug, Default)]
pub struct CommandSlot {
    last_received: u64,
    pending: Option<Directive>,
}

impl CommandSlot {
    /// Stores a command unless it was received before.
    pub fn receive(&mut self, command: CoordinatorCommand) {
        if command.number > self.last_received {
            self.last_received = command.number;
            self.pending = Some(command.directive);
        }
    }

    /// Removes and returns the pending directive. Returns [`Directive::Continue`] if none is pending.
    pub fn take(&mut self) -> Directive {
        self.pending.take().unwrap_or_default()
    }

    /// Returns the pending directive, or [`Directive::Continue`], without removing it.
    pub fn peek(&self) -> Directive {
        self.pending.unwrap_or_default()
    }

    /// Makes `directive` pending again after it could not be executed. A newer pending directive takes precedence.
    pub fn restore(&mut self, directive: Directive) {
        if directive != Directive::Continue {
            self.pending.get_or_insert(directive);
        }
    }

    /// Number of the last command that the training thread has taken, or 0 if it has taken none.
    pub fn acknowledged(&self) -> u64 {
        self.last_received - u64::from(self.pending.is_some() && self.last_received > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    fn warning(text: &str) -> Message {
        Message::Event(EventKind::Warning { message: text.into() })
    }

    #[test]
    fn a_batch_stays_below_the_report_limit() {
        let mut outbox = Outbox::default();
        (0..40).for_each(|_| outbox.push(warning(&"x".repeat(50_000))));
        let mut sent = 0;
        while !outbox.is_empty() {
            let batch = outbox.batch();
            assert!(serde_json::to_vec(&batch).unwrap().len() < crate::MAX_REPORT_BYTES);
            sent += batch.len();
            outbox.acknowledge(batch.last().unwrap().number);
        }
        assert_eq!(sent, 40);
        outbox.push(warning(&"x".repeat(crate::MAX_REPORT_BYTES)));
        assert_eq!(outbox.batch().len(), 1, "a message above the limit is sent alone and does not block the queue");
    }

    /// Simulates a connection that loses reports and replies. A set bit of the first pattern means that a report is
    /// lost. A set bit of the second pattern means that a reply is lost.
    fn exchange(patterns: (u64, u64)) -> Vec<Message> {
        let (mut outbox, mut inbox, mut arrived) = (Outbox::default(), Inbox::default(), Vec::new());
        for turn in 0..64 {
            if turn < 20 {
                outbox.push(warning(&turn.to_string()));
            }
            let batch = outbox.batch();
            if patterns.0 >> turn & 1 == 0 {
                arrived.extend(inbox.accept(batch));
                if patterns.1 >> turn & 1 == 0 {
                    outbox.acknowledge(inbox.acknowledged());
                }
            }
        }
        assert!(outbox.is_empty(), "{patterns:?}");
        arrived
    }

    #[test]
    fn messages_arrive_once_and_in_order_despite_losses() {
        let expected: Vec<_> = (0..20).map(|turn| warning(&turn.to_string())).collect();
        for lost in [0, u64::MAX >> 2, 0xaaaa_aaaa_aaaa_aaaa >> 2, 0x0123_4567_89ab_cdef] {
            for unanswered in [0, u64::MAX >> 2, 0x3333_3333_3333_3333 >> 2] {
                assert_eq!(exchange((lost, unanswered)), expected);
            }
        }
    }

    #[test]
    fn batches_are_limited_and_messages_after_a_gap_are_dropped() {
        let mut outbox = Outbox::default();
        (0..1000).for_each(|number| outbox.push(warning(&number.to_string())));
        assert_eq!(outbox.batch().len(), MAX_BATCH_MESSAGES);
        let mut inbox = Inbox::default();
        let late = outbox.batch().split_off(3);
        assert_eq!((inbox.accept(late), inbox.acknowledged()), (Vec::new(), 0));
        assert_eq!(inbox.accept(outbox.batch()).len(), MAX_BATCH_MESSAGES);
        assert_eq!(inbox.acknowledged(), MAX_BATCH_MESSAGES as u64);
    }

    #[test]
    fn a_repeated_command_is_executed_once() {
        let (save, stop) = (Directive::Checkpoint, Directive::CheckpointAndStop);
        let mut slot = CommandSlot::default();
        assert_eq!((slot.take(), slot.acknowledged()), (Directive::Continue, 0));
        slot.receive(CoordinatorCommand { number: 1, directive: save });
        assert_eq!(slot.acknowledged(), 0, "the training thread has not taken it");
        slot.receive(CoordinatorCommand { number: 1, directive: save });
        assert_eq!((slot.take(), slot.acknowledged()), (save, 1));
        slot.receive(CoordinatorCommand { number: 1, directive: save });
        assert_eq!(slot.take(), Directive::Continue);
        slot.receive(CoordinatorCommand { number: 3, directive: stop });
        slot.receive(CoordinatorCommand { number: 2, directive: save });
        assert_eq!((slot.take(), slot.acknowledged()), (stop, 3));
        // The step failed, so the directive could not be executed.
        slot.restore(Directive::Continue);
        assert_eq!(slot.take(), Directive::Continue);
        slot.restore(stop);
        assert_eq!(slot.acknowledged(), 2, "it is pending again");
        assert_eq!((slot.take(), slot.take(), slot.acknowledged()), (stop, Directive::Continue, 3));
    }
}
