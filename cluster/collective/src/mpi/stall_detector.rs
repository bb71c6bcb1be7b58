//! Stall detection. Decides when an operation is hung and which ranks are suspected. The decision depends only on the
//! recorded events and their times.

use std::time::{Duration, Instant};

/// Time limits of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallLimits {
    /// Maximum time without a complete segment if a rank does not reply to probes.
    pub stall: Duration,
    /// Maximum time without a complete segment if all ranks reply but one has not started the operation.
    pub straggler: Duration,
}

/// Deadline that the caller has set for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// Time at which the other ranks are probed.
    pub probe_at: Instant,
    /// Time at which the operation fails.
    pub expires_at: Instant,
}

/// Next action for an operation in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StallVerdict {
    /// Keep waiting.
    Wait,
    /// Probe the other ranks.
    Probe,
    /// Fail the operation. These ranks are suspected.
    Hung(Vec<usize>),
}

/// Progress of one kind of operation on one rank.
#[derive(Debug)]
pub struct StallDetector {
    limits: StallLimits,
    /// Time of the last complete segment.
    last_progress: Instant,
    /// Time of the last complete segment, or of the last probe that all ranks replied to.
    last_contact: Instant,
    probe: Option<ProbeState>,
}

/// Probe whose replies are being collected.
#[derive(Debug)]
struct ProbeState {
    sent_at: Instant,
    /// Number of operations that each rank has started, according to its reply. `None` for a rank that has not replied.
    replies: Vec<Option<u64>>,
}

impl StallDetector {
    pub fn new(limits: StallLimits, now: Instant) -> Self {
        Self { limits, last_progress: now, last_contact: now, probe: None }
    }

    /// Records a complete segment, or the start of the first operation after an idle time.
    pub fn progressed(&mut self, now: Instant) {
        (self.last_progress, self.last_contact, self.probe) = (now, now, None);
    }

    /// Records that a probe was sent to all other ranks.
    pub fn probed(&mut self, now: Instant, world_size: usize) {
        self.probe = Some(ProbeState { sent_at: now, replies: vec![None; world_size] });
    }

    /// Records the reply of `rank`, which has started `started` operations.
    pub fn replied(&mut self, rank: usize, started: u64) {
        if let Some(reply) = self.probe.as_mut().and_then(|probe| probe.replies.get_mut(rank)) {
            *reply = Some(started);
        }
    }

    /// Decides what to do about operation `number`, which is in flight on rank `own`.
    pub fn judge(&mut self, now: Instant, own: usize, number: u64, deadline: Option<Deadline>) -> StallVerdict {
        let is_expired = deadline.is_some_and(|deadline| now >= deadline.expires_at);
        let half = self.limits.stall / 2;
        let Some(probe) = &self.probe else {
            let is_probe_due =
                now >= self.last_contact + half || deadline.is_some_and(|deadline| now >= deadline.probe_at);
            return if is_expired {
                StallVerdict::Hung(Vec::new())
            } else if is_probe_due {
                StallVerdict::Probe
            } else {
                StallVerdict::Wait
            };
        };
        // The time is counted from the probe. Therefore a rank that was itself stopped collects replies after it
        // resumes, and only then suspects other ranks.
        if !is_expired && now < probe.sent_at + half {
            return StallVerdict::Wait;
        }
        let ranks = |is_suspect: fn(&Option<u64>, u64) -> bool| -> Vec<usize> {
            let others = probe.replies.iter().enumerate().filter(|(rank, _)| *rank != own);
            others.filter(|(_, reply)| is_suspect(reply, number)).map(|(rank, _)| rank).collect()
        };
        let silent = ranks(|reply, _| reply.is_none());
        if !silent.is_empty() {
            return StallVerdict::Hung(silent);
        }
        let stragglers = ranks(|reply, number| reply.is_some_and(|started| started <= number));
        if is_expired || stragglers.is_empty() || now >= self.last_progress + self.limits.straggler {
            return StallVerdict::Hung(stragglers);
        }
        (self.last_contact, self.probe) = (now, None);
        StallVerdict::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StallLimits = StallLimits { stall: Duration::from_secs(60), straggler: Duration::from_secs(600) };

    fn detector() -> (StallDetector, impl Fn(u64) -> Instant) {
        let begin = Instant::now();
        (StallDetector::new(LIMITS, begin), move |seconds| begin + Duration::from_secs(seconds))
    }

    #[test]
    fn ranks_are_probed_at_half_of_the_limit_and_silent_ones_are_suspected() {
        let (mut detector, at) = detector();
        assert_eq!(detector.judge(at(29), 0, 5, None), StallVerdict::Wait);
        assert_eq!(detector.judge(at(30), 0, 5, None), StallVerdict::Probe);
        detector.probed(at(30), 4);
        detector.replied(1, 6);
        detector.replied(3, 5);
        assert_eq!(detector.judge(at(59), 0, 5, None), StallVerdict::Wait);
        assert_eq!(detector.judge(at(60), 0, 5, None), StallVerdict::Hung(vec![2]));
    }

    #[test]
    fn a_complete_segment_restarts_the_limit() {
        let (mut detector, at) = detector();
        detector.probed(at(30), 2);
        detector.progressed(at(59));
        assert_eq!(detector.judge(at(60), 0, 0, None), StallVerdict::Wait);
        assert_eq!(detector.judge(at(89), 0, 0, None), StallVerdict::Probe);
    }

    #[test]
    fn a_straggler_that_replies_is_waited_for_up_to_its_limit() {
        let (mut detector, at) = detector();
        for period in 0..9 {
            let begin = 60 * period;
            assert_eq!(detector.judge(at(begin + 30), 0, 5, None), StallVerdict::Probe);
            detector.probed(at(begin + 30), 3);
            detector.replied(1, 5);
            detector.replied(2, 6);
            assert_eq!(detector.judge(at(begin + 60), 0, 5, None), StallVerdict::Wait, "period {period}");
        }
        detector.probed(at(570), 3);
        detector.replied(1, 5);
        detector.replied(2, 6);
        assert_eq!(detector.judge(at(600), 0, 5, None), StallVerdict::Hung(vec![1]));
    }

    #[test]
    fn no_rank_is_suspected_if_all_have_started_and_nothing_progresses() {
        let (mut detector, at) = detector();
        detector.probed(at(30), 2);
        detector.replied(1, 1);
        assert_eq!(detector.judge(at(60), 0, 0, None), StallVerdict::Hung(Vec::new()));
    }

    #[test]
    fn a_deadline_expires_earlier_and_names_the_straggler() {
        let (mut detector, at) = detector();
        let deadline = Some(Deadline { probe_at: at(1), expires_at: at(2) });
        assert_eq!(detector.judge(at(1), 0, 0, deadline), StallVerdict::Probe);
        detector.probed(at(1), 3);
        detector.replied(1, 1);
        detector.replied(2, 0);
        assert_eq!(detector.judge(at(2), 0, 0, deadline), StallVerdict::Hung(vec![2]));
    }

    #[test]
    fn a_rank_that_was_stopped_itself_probes_before_it_suspects_others() {
        let (mut detector, at) = detector();
        assert_eq!(detector.judge(at(500), 0, 0, None), StallVerdict::Probe);
        detector.probed(at(500), 2);
        assert_eq!(detector.judge(at(500), 0, 0, None), StallVerdict::Wait);
    }
}
