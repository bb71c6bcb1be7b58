//! When an operation is hung, and whose fault it is: a pure function of what was heard and when.

use std::time::{Duration, Instant};

/// How long to wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Without a segment, and without an answer of each rank.
    pub stall: Duration,
    /// For a rank that answers and has not come to the operation.
    pub absence: Duration,
}

/// A limit that the caller of one operation has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// When the others are asked where they are.
    pub ask: Instant,
    /// When the operation is given up.
    pub end: Instant,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Wait,
    /// The others are to be asked where they are.
    Ask,
    /// The operation is given up; these ranks are suspected.
    Hung(Vec<usize>),
}

/// What one rank knows about the operations of one kind that are under way.
#[derive(Debug)]
pub struct Watch {
    limits: Limits,
    /// When a segment was complete last.
    moved: Instant,
    /// When a segment was complete or all ranks had answered last.
    heard: Instant,
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    at: Instant,
    /// By rank, the number of operations that it has started.
    answers: Vec<Option<u64>>,
}

impl Watch {
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self { limits, moved: now, heard: now, asked: None }
    }

    /// A segment is complete, or there was nothing to wait for until now.
    pub fn moved(&mut self, now: Instant) {
        (self.moved, self.heard, self.asked) = (now, now, None);
    }

    /// All others, in a world of so many ranks, are asked now.
    pub fn asked(&mut self, now: Instant, world: usize) {
        self.asked = Some(Asked { at: now, answers: vec![None; world] });
    }

    /// A rank has answered that it has started so many operations.
    pub fn answered(&mut self, rank: usize, started: u64) {
        if let Some(answer) = self.asked.as_mut().and_then(|asked| asked.answers.get_mut(rank)) {
            *answer = Some(started);
        }
    }

    /// What to do about operation `number`, under way at `now`, on rank `own`.
    pub fn judge(&mut self, now: Instant, own: usize, number: u64, term: Option<Term>) -> Verdict {
        let over = term.is_some_and(|term| now >= term.end);
        let half = self.limits.stall / 2;
        let Some(asked) = &self.asked else {
            let due = now >= self.heard + half || term.is_some_and(|term| now >= term.ask);
            return if over {
                Verdict::Hung(Vec::new())
            } else if due {
                Verdict::Ask
            } else {
                Verdict::Wait
            };
        };
        // Counted from the question, so that a rank that was stopped itself listens before it judges.
        if !over && now < asked.at + half {
            return Verdict::Wait;
        }
        let ranks = |is_suspect: fn(&Option<u64>, u64) -> bool| -> Vec<usize> {
            let others = asked.answers.iter().enumerate().filter(|(rank, _)| *rank != own);
            others.filter(|(_, answer)| is_suspect(answer, number)).map(|(rank, _)| rank).collect()
        };
        let silent = ranks(|answer, _| answer.is_none());
        if !silent.is_empty() {
            return Verdict::Hung(silent);
        }
        let absent = ranks(|answer, number| answer.is_some_and(|started| started <= number));
        if over || absent.is_empty() || now >= self.moved + self.limits.absence {
            return Verdict::Hung(absent);
        }
        (self.heard, self.asked) = (now, None);
        Verdict::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { stall: Duration::from_secs(60), absence: Duration::from_secs(600) };

    fn watch() -> (Watch, impl Fn(u64) -> Instant) {
        let begin = Instant::now();
        (Watch::new(LIMITS, begin), move |seconds| begin + Duration::from_secs(seconds))
    }

    #[test]
    fn the_others_are_asked_at_half_of_the_limit_and_the_silent_are_suspected() {
        let (mut watch, at) = watch();
        assert_eq!(watch.judge(at(29), 0, 5, None), Verdict::Wait);
        assert_eq!(watch.judge(at(30), 0, 5, None), Verdict::Ask);
        watch.asked(at(30), 4);
        watch.answered(1, 6);
        watch.answered(3, 5);
        assert_eq!(watch.judge(at(59), 0, 5, None), Verdict::Wait);
        assert_eq!(watch.judge(at(60), 0, 5, None), Verdict::Hung(vec![2]));
    }

    #[test]
    fn a_segment_begins_the_wait_anew() {
        let (mut watch, at) = watch();
        watch.asked(at(30), 2);
        watch.moved(at(59));
        assert_eq!(watch.judge(at(60), 0, 0, None), Verdict::Wait);
        assert_eq!(watch.judge(at(89), 0, 0, None), Verdict::Ask);
    }

    #[test]
    fn a_rank_that_answers_may_come_later_but_not_for_ever() {
        let (mut watch, at) = watch();
        for period in 0..9 {
            let begin = 60 * period;
            assert_eq!(watch.judge(at(begin + 30), 0, 5, None), Verdict::Ask);
            watch.asked(at(begin + 30), 3);
            watch.answered(1, 5);
            watch.answered(2, 6);
            assert_eq!(watch.judge(at(begin + 60), 0, 5, None), Verdict::Wait, "period {period}");
        }
        watch.asked(at(570), 3);
        watch.answered(1, 5);
        watch.answered(2, 6);
        assert_eq!(watch.judge(at(600), 0, 5, None), Verdict::Hung(vec![1]));
    }

    #[test]
    fn where_all_have_come_and_nothing_moves_nobody_is_named() {
        let (mut watch, at) = watch();
        watch.asked(at(30), 2);
        watch.answered(1, 1);
        assert_eq!(watch.judge(at(60), 0, 0, None), Verdict::Hung(Vec::new()));
    }

    #[test]
    fn a_term_ends_earlier_and_names_who_has_not_come() {
        let (mut watch, at) = watch();
        let term = Some(Term { ask: at(1), end: at(2) });
        assert_eq!(watch.judge(at(1), 0, 0, term), Verdict::Ask);
        watch.asked(at(1), 3);
        watch.answered(1, 1);
        watch.answered(2, 0);
        assert_eq!(watch.judge(at(2), 0, 0, term), Verdict::Hung(vec![2]));
    }

    #[test]
    fn a_rank_that_was_stopped_itself_asks_before_it_judges() {
        let (mut watch, at) = watch();
        assert_eq!(watch.judge(at(500), 0, 0, None), Verdict::Ask);
        watch.asked(at(500), 2);
        assert_eq!(watch.judge(at(500), 0, 0, None), Verdict::Wait);
    }
}
