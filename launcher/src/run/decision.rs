//! What follows when an attempt has ended: a pure function of how it ended and of what came before.

use std::time::Duration;

use lambert_config::exit;

/// The longest pause before workers are started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// A checkpoint was saved on request and the workers left.
    Stopped,
    /// The workers left in good order, and the run goes back behind what derailed it.
    RolledBack,
    /// A worker died or could not go on.
    Failed {
        /// The exit code that belongs to it, should nothing else be tried.
        code: i32,
        /// Whether a new attempt may fare better.
        retry: bool,
    },
}

/// What an attempt achieved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Achieved {
    /// Steps of the run that were finished when it ended.
    pub step: u64,
    /// Whether it committed a checkpoint.
    pub committed: bool,
}

/// What the attempts so far have shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Failures since the run last got anywhere.
    pub in_vain: usize,
    /// Most steps that an attempt has finished.
    pub furthest: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Leave, with this exit code.
    Leave(i32),
    /// Start the workers again after a pause.
    Restart(Duration),
    /// Leave, because the last `usize` starts led nowhere.
    GiveUp(usize),
}

/// Decides what follows an attempt, at most `limit` restarts of its kind in a row without progress, and keeps the ledger.
/// After a rollback the workers are started again at once.
///
/// Progress is a checkpoint or more steps than any attempt before; it sets the count back. The pause doubles with each
/// failure in a row from one second up to a minute.
pub fn next(ledger: Ledger, ending: &Ending, achieved: Achieved, limit: usize) -> (Next, Ledger) {
    let (code, retry, waits) = match *ending {
        Ending::Finished => return (Next::Leave(exit::DONE), ledger),
        Ending::Stopped => return (Next::Leave(exit::STOPPED), ledger),
        Ending::RolledBack => (exit::FAILED, true, false),
        Ending::Failed { code, retry } => (code, retry, true),
    };
    let progress = achieved.committed || achieved.step > ledger.furthest;
    let in_vain = if progress { 1 } else { ledger.in_vain + 1 };
    let ledger = Ledger { in_vain, furthest: ledger.furthest.max(achieved.step) };
    let next = match (retry, in_vain > limit) {
        (false, _) => Next::Leave(code),
        (true, true) => Next::GiveUp(limit),
        (true, false) => Next::Restart(if waits { pause(in_vain) } else { Duration::ZERO }),
    };
    (next, ledger)
}

/// 1, 2, 4 ... seconds for the first, second, third ... failure in a row.
fn pause(failures: usize) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    Duration::from_secs(1 << doublings).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Ending = Ending::Failed { code: exit::FAILED, retry: true };

    fn seconds(next: Next) -> u64 {
        match next {
            Next::Restart(pause) => pause.as_secs(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ends_in_good_order_are_kept() {
        let ledger = Ledger { in_vain: 3, furthest: 7 };
        assert_eq!(next(ledger, &Ending::Finished, Achieved::default(), 5), (Next::Leave(exit::DONE), ledger));
        assert_eq!(next(ledger, &Ending::Stopped, Achieved::default(), 5), (Next::Leave(exit::STOPPED), ledger));
    }

    #[test]
    fn what_cannot_get_better_is_not_tried_again() {
        let wrong = Ending::Failed { code: exit::USAGE, retry: false };
        assert_eq!(next(Ledger::default(), &wrong, Achieved::default(), 5).0, Next::Leave(exit::USAGE));
    }

    #[test]
    fn pauses_grow_until_it_is_given_up() {
        let mut ledger = Ledger::default();
        let mut pauses = Vec::new();
        let end = loop {
            let (decision, after) = next(ledger, &FAILED, Achieved::default(), 8);
            ledger = after;
            match decision {
                Next::Restart(pause) => pauses.push(pause.as_secs()),
                other => break other,
            }
        };
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(end, Next::GiveUp(8));
    }

    #[test]
    fn progress_sets_the_count_back() {
        let ledger = Ledger { in_vain: 4, furthest: 100 };
        let (same, after) = next(ledger, &FAILED, Achieved { step: 100, committed: false }, 5);
        assert_eq!((seconds(same), after.in_vain), (16, 5));
        let (further, after) = next(ledger, &FAILED, Achieved { step: 101, committed: false }, 5);
        assert_eq!((seconds(further), after), (1, Ledger { in_vain: 1, furthest: 101 }));
        // A newer checkpoint is progress even where the attempt died earlier than the one before.
        let (saved, after) = next(ledger, &FAILED, Achieved { step: 60, committed: true }, 5);
        assert_eq!((seconds(saved), after), (1, Ledger { in_vain: 1, furthest: 100 }));
    }

    #[test]
    fn going_back_does_not_wait_and_has_its_limit() {
        let back = |ledger, limit| next(ledger, &Ending::RolledBack, Achieved { step: 9, committed: false }, limit);
        let (first, ledger) = back(Ledger::default(), 2);
        assert_eq!(first, Next::Restart(Duration::ZERO));
        let (second, ledger) = back(ledger, 2);
        assert_eq!(second, Next::Restart(Duration::ZERO));
        assert_eq!(back(ledger, 2).0, Next::GiveUp(2));
    }

    #[test]
    fn no_restarts_may_be_wanted() {
        let achieved = Achieved { step: 50, committed: true };
        assert_eq!(next(Ledger::default(), &FAILED, achieved, 0).0, Next::GiveUp(0));
    }
}
