//! Validation of messages from ranks. The decision function trusts every message that passes the validation.

use lambert_control::EventKind;
use lambert_control::Message;

/// Validator of the messages of one attempt.
#[derive(Debug, Default)]
pub struct MessageValidator {
    /// First step of the attempt and last step of its schedule, once rank 0 has reported them.
    steps: Option<(u64, u64)>,
}

impl MessageValidator {
    /// Returns the reason to reject a message of `rank`, if there is one. Only rank 0 may report events of the whole
    /// run, and the reported end of the run must agree with the schedule.
    pub fn rejection(&mut self, rank: usize, worker_message: &Message) -> Option<String> {
        let what = match worker_message {
            Message::Record(_) => "a step's record",
            Message::Event(EventKind::Started { .. }) => "the start of the training",
            Message::Event(EventKind::Checkpoint { .. }) => "a checkpoint",
            Message::Event(EventKind::SaveFailed { .. }) => "a failed save",
            Message::Event(EventKind::Plateau { .. }) => "the end of a stage",
            Message::Event(EventKind::RolledBack { .. }) => "a rollback",
            Message::Event(EventKind::Finished { .. }) => "the end of the run",
            Message::Event(_) => return None,
        };
        if rank != 0 {
            return Some(format!("rank {rank} reports {what}, which only rank 0 does"));
        }
        match worker_message {
            Message::Event(EventKind::Started { step, steps, .. }) => self.steps = Some((*step, *steps.max(step))),
            Message::Event(EventKind::Plateau { step, steps, .. }) => {
                let (first, _) = self.steps.unwrap_or_default();
                self.steps = Some((first, *steps.max(step)));
            }
            Message::Event(EventKind::Finished { step, stopped }) => return self.end(*step, *stopped),
            _ => {}
        }
        None
    }

    fn end(&self, step: u64, stopped: bool) -> Option<String> {
        let Some((first, last)) = self.steps else {
            return Some(format!("rank 0 reports the end of the run at step {step} before its start"));
        };
        let is_planned = if stopped { (first..=last).contains(&step) } else { step == last };
        (!is_planned).then(|| format!("rank 0 reports the end of the run at step {step} of {last}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_control::FailureKind;

    fn started(step: u64, steps: u64) -> Message {
        Message::Event(EventKind::Started { step, steps, checkpoint: None, skipped_checkpoints: Vec::new() })
    }

    fn finished(step: u64, stopped: bool) -> Message {
        Message::Event(EventKind::Finished { step, stopped })
    }

    #[test]
    fn only_rank_0_sends_run_events() {
        let mut validator = MessageValidator::default();
        let checkpoint = EventKind::Checkpoint { name: "c".into(), step: 1, seconds: 0.0, written: 0.0 };
        let plateau = EventKind::Plateau { step: 4, stage: "a".into(), done: 4, steps: 4 };
        let save_failed = EventKind::SaveFailed { message: "m".into(), error: "e".into() };
        let rolled_back = EventKind::RolledBack { message: "m".into(), step: 2, last_kept: 1 };
        let events = [checkpoint, plateau, save_failed, rolled_back].map(Message::Event);
        let all = [Message::Record(Box::default()), started(0, 9), finished(9, false), finished(4, true)];
        for worker_message in all.iter().chain(&events) {
            let rejection = validator.rejection(1, worker_message).unwrap();
            assert!(rejection.starts_with("rank 1 reports ") && rejection.ends_with("which only rank 0 does"));
        }
        let of_all = [
            EventKind::Warning { message: "w".into() },
            EventKind::Failed { message: "f".into(), kind: FailureKind::Transient, missing: Vec::new() },
        ];
        for worker_message in of_all.map(Message::Event) {
            assert_eq!(validator.rejection(1, &worker_message), None);
        }
        assert!(validator.rejection(0, &finished(9, false)).is_some(), "rank 1 started nothing");
    }

    #[test]
    fn the_last_step_must_match_the_plan() {
        let ends = |before: &[Message], end: Message| {
            let mut validator = MessageValidator::default();
            before.iter().for_each(|worker_message| assert_eq!(validator.rejection(0, worker_message), None));
            validator.rejection(0, &end).is_none()
        };
        let plan = [started(5, 9)];
        assert!(
            ends(&plan, finished(9, false)) && !ends(&plan, finished(8, false)) && !ends(&plan, finished(10, false))
        );
        assert!(ends(&plan, finished(5, true)) && ends(&plan, finished(8, true)));
        assert!(!ends(&plan, finished(4, true)) && !ends(&plan, finished(10, true)));
        assert!(!ends(&[], finished(9, false)) && !ends(&[], finished(9, true)));
        // A stage that ends early shortens the schedule. If a user has shortened the schedule in the configuration, the
        // schedule may end before the step of the checkpoint.
        let plateau = Message::Event(EventKind::Plateau { step: 6, stage: "a".into(), done: 6, steps: 7 });
        let shortened = [started(5, 9), plateau];
        assert!(ends(&shortened, finished(7, false)) && !ends(&shortened, finished(9, false)));
        assert!(ends(&[started(12, 9)], finished(12, false)) && !ends(&[started(12, 9)], finished(9, false)));
    }
}
