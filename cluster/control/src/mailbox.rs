//! Both ends of numbered messages, as state without a wire: whatever is lost, repeated or comes late, each message is
//! taken once and in order.

use std::collections::VecDeque;

use crate::Directive;

use crate::{Numbered, Order, Saying};

/// No report carries more sayings than this, nor, beyond the first, more bytes of them: it stays below [`crate::LONGEST_REPORT`].
const AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = crate::LONGEST_REPORT / 2;

/// What a rank has said and the coordinator has not acknowledged.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Numbered>,
    last: u64,
}

impl Outbox {
    /// Adds a saying under the next number.
    pub fn push(&mut self, saying: Saying) {
        self.last += 1;
        self.waiting.push_back(Numbered { number: self.last, saying });
    }

    /// The oldest of those that were not acknowledged: what to send now.
    pub fn batch(&self) -> Vec<Numbered> {
        let mut bytes = 0;
        let mut fits = |said: &&Numbered| {
            let is_first = bytes == 0;
            bytes += serde_json::to_vec(said).map_or(0, |text| text.len());
            is_first || bytes <= BYTES_AT_ONCE
        };
        self.waiting.iter().take(AT_ONCE).take_while(|said| fits(said)).cloned().collect()
    }

    /// Forgets everything up to `number`.
    pub fn acknowledge(&mut self, number: u64) {
        while self.waiting.front().is_some_and(|oldest| oldest.number <= number) {
            self.waiting.pop_front();
        }
    }

    /// Whether everything has arrived.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// What has arrived from one rank.
#[derive(Debug, Default)]
pub struct Inbox {
    last: u64,
}

impl Inbox {
    /// Takes out what has not arrived before. A saying whose predecessor is missing is left for its repetition.
    pub fn take(&mut self, said: Vec<Numbered>) -> Vec<Saying> {
        let mut new = Vec::new();
        for Numbered { number, saying } in said {
            if number == self.last + 1 {
                self.last = number;
                new.push(saying);
            }
        }
        new
    }

    /// The number up to which everything has arrived.
    pub fn acknowledged(&self) -> u64 {
        self.last
    }
}

/// A rank's last order, between the thread that hears it and the one that trains.
#[derive(Debug, Default)]
pub struct OrderSlot {
    heard: u64,
    waiting: Option<Directive>,
}

impl OrderSlot {
    /// Takes in an order; one that was heard before changes nothing.
    pub fn hear(&mut self, order: Order) {
        if order.number > self.heard {
            self.heard = order.number;
            self.waiting = Some(order.directive);
        }
    }

    /// What is to be done, once.
    pub fn take(&mut self) -> Directive {
        self.waiting.take().unwrap_or_default()
    }

    /// What [`OrderSlot::take`] would give.
    pub fn peek(&self) -> Directive {
        self.waiting.unwrap_or_default()
    }

    /// An order that was taken and could not be followed is to be taken again, unless another has come.
    pub fn put_back(&mut self, directive: Directive) {
        if directive != Directive::Continue {
            self.waiting.get_or_insert(directive);
        }
    }

    /// Number of the last order that was taken; one that waits for the training thread is not among them.
    pub fn taken(&self) -> u64 {
        self.heard - u64::from(self.waiting.is_some() && self.heard > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    fn warning(text: &str) -> Saying {
        Saying::Event(EventKind::Warning { message: text.into() })
    }

    #[test]
    fn a_report_stays_below_its_limit() {
        let mut outbox = Outbox::default();
        (0..40).for_each(|_| outbox.push(warning(&"x".repeat(50_000))));
        let mut sent = 0;
        while !outbox.is_empty() {
            let said = outbox.batch();
            assert!(serde_json::to_vec(&said).unwrap().len() < crate::LONGEST_REPORT);
            sent += said.len();
            outbox.acknowledge(said.last().unwrap().number);
        }
        assert_eq!(sent, 40);
        outbox.push(warning(&"x".repeat(crate::LONGEST_REPORT)));
        assert_eq!(outbox.batch().len(), 1, "one that is too long is refused, and keeps nobody waiting here");
    }

    /// A wire that loses reports and answers by a fixed pattern of bits.
    fn exchange(patterns: (u64, u64)) -> Vec<Saying> {
        let (mut outbox, mut inbox, mut arrived) = (Outbox::default(), Inbox::default(), Vec::new());
        for turn in 0..64 {
            if turn < 20 {
                outbox.push(warning(&turn.to_string()));
            }
            let said = outbox.batch();
            if patterns.0 >> turn & 1 == 0 {
                arrived.extend(inbox.take(said));
                if patterns.1 >> turn & 1 == 0 {
                    outbox.acknowledge(inbox.acknowledged());
                }
            }
        }
        assert!(outbox.is_empty(), "{patterns:?}");
        arrived
    }

    #[test]
    fn whatever_is_lost_each_saying_arrives_once_and_in_order() {
        let expected: Vec<_> = (0..20).map(|turn| warning(&turn.to_string())).collect();
        for lost in [0, u64::MAX >> 2, 0xaaaa_aaaa_aaaa_aaaa >> 2, 0x0123_4567_89ab_cdef] {
            for unanswered in [0, u64::MAX >> 2, 0x3333_3333_3333_3333 >> 2] {
                assert_eq!(exchange((lost, unanswered)), expected);
            }
        }
    }

    #[test]
    fn a_report_has_a_limited_length_and_a_gap_is_not_jumped() {
        let mut outbox = Outbox::default();
        (0..1000).for_each(|number| outbox.push(warning(&number.to_string())));
        assert_eq!(outbox.batch().len(), AT_ONCE);
        let mut inbox = Inbox::default();
        let late = outbox.batch().split_off(3);
        assert_eq!((inbox.take(late), inbox.acknowledged()), (Vec::new(), 0));
        assert_eq!(inbox.take(outbox.batch()).len(), AT_ONCE);
        assert_eq!(inbox.acknowledged(), AT_ONCE as u64);
    }

    #[test]
    fn an_order_is_carried_out_once_however_often_it_is_heard() {
        let (save, stop) = (Directive::Checkpoint, Directive::CheckpointAndStop);
        let mut slot = OrderSlot::default();
        assert_eq!((slot.take(), slot.taken()), (Directive::Continue, 0));
        slot.hear(Order { number: 1, directive: save });
        assert_eq!(slot.taken(), 0, "the training thread has not seen it");
        slot.hear(Order { number: 1, directive: save });
        assert_eq!((slot.take(), slot.taken()), (save, 1));
        slot.hear(Order { number: 1, directive: save });
        assert_eq!(slot.take(), Directive::Continue);
        slot.hear(Order { number: 3, directive: stop });
        slot.hear(Order { number: 2, directive: save });
        assert_eq!((slot.take(), slot.taken()), (stop, 3));
        // In a step that could not be made it could not be followed.
        slot.put_back(Directive::Continue);
        assert_eq!(slot.take(), Directive::Continue);
        slot.put_back(stop);
        assert_eq!(slot.taken(), 2, "it is still to be done");
        assert_eq!((slot.take(), slot.take(), slot.taken()), (stop, Directive::Continue, 3));
    }
}
