//! What is known of an attempt while it runs, put together from what ranks and the launcher say; and why it failed.
//!
//! - `ranks`: the ranks and their hosts; `versions`: the programs that they run; `steps`: what they have done
//! - `trouble`: what has gone wrong, and why the attempt failed

mod ranks;
mod steps;
mod trouble;
mod versions;

use lambert_control::{EventKind, Message, WorkerPhase, WorkerReport};

use super::Seconds;
use super::event::FromWorkers;
pub use ranks::{Rank, Ranks};
pub use steps::Steps;
use trouble::RankFailure;
pub use trouble::{Failure, Trouble};
pub use versions::VersionCheck;

/// An attempt, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Watch {
    /// The ranks and their hosts.
    pub ranks: Ranks,
    /// The programs that they run.
    pub versions: VersionCheck,
    /// What they have done.
    pub steps: Steps,
    /// What has gone wrong.
    pub trouble: Trouble,
    /// That the ranks leave in good order, and since when.
    left: Option<(Seconds, Left)>,
}

/// How the ranks left in good order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Left {
    Complete,
    Stopped,
    RolledBack(Rollback),
}

/// A rollback that rank 0 told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollback {
    /// What happened and what follows.
    pub message: String,
    /// The step at which it was decided.
    pub step: u64,
    /// Steps that stay: checkpoints of more are undone.
    pub to: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// A checkpoint was saved on request and the ranks left.
    Stopped,
    /// The ranks left in good order, and the run goes back behind what derailed it.
    RolledBack(Rollback),
    /// No rank ever came up.
    Absent(String),
    /// The ranks ended because this coordinator did not answer them: it was suspended, or starved.
    Unsupervised(String),
    /// It failed.
    Failed(Failure),
}

impl Watch {
    /// Of an attempt whose ranks are put on the hosts of these names.
    pub fn new(places: Vec<String>) -> Self {
        Self { ranks: Ranks::new(places), ..Self::default() }
    }

    /// Takes in what came from the processes.
    pub fn take(&mut self, at: Seconds, what: FromWorkers) {
        match what {
            FromWorkers::Report(report) => self.report(at, report),
            FromWorkers::Message(rank, Message::Event(event)) => self.event(at, rank, event),
            FromWorkers::Message(_, Message::Record(record)) => self.steps.record(&record),
            FromWorkers::Died(death) => self.trouble.died(at, death),
            FromWorkers::Remark(text) => self.trouble.remark(text),
            FromWorkers::Exited(exit) => self.trouble.exited(at, exit),
            FromWorkers::Line(..) | FromWorkers::Gone(_) => {}
        }
    }

    fn report(&mut self, at: Seconds, report: WorkerReport) {
        let WorkerReport { rank, pid, host, step, phase, seconds_in_phase, versions, .. } = report;
        if let Some(versions) = versions {
            self.versions.compare(rank, versions);
        }
        self.steps.reach(step);
        let since = at - seconds_in_phase.max(0.0);
        self.ranks.insert(rank, Rank { pid, host, step, phase, since, heard: at });
    }

    fn event(&mut self, at: Seconds, rank: usize, event: EventKind) {
        match event {
            EventKind::Started { .. } => self.steps.started = true,
            EventKind::Checkpoint { .. } => self.steps.committed = true,
            EventKind::Finished { stopped, .. } if rank == 0 => {
                self.left = Some((at, if stopped { Left::Stopped } else { Left::Complete }));
            }
            EventKind::RolledBack { message, step, to } if rank == 0 => {
                self.trouble.begin(at);
                self.left = Some((at, Left::RolledBack(Rollback { message, step, to })));
            }
            EventKind::Failed { message, kind: fault } => self.trouble.failed(at, RankFailure { rank, message, fault }),
            EventKind::Finished { .. }
            | EventKind::RolledBack { .. }
            | EventKind::Evaluation(_)
            | EventKind::Plateau { .. }
            | EventKind::Grown { .. }
            | EventKind::MicroBatch { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    /// Whether an end loses nothing: no step was finished and no checkpoint committed in this attempt, and no rank is further
    /// than its first step.
    pub fn is_fresh(&self) -> bool {
        let early = |rank: &Rank| matches!(rank.phase, WorkerPhase::Join | WorkerPhase::Load) || rank.phase.is_step();
        self.steps.are_none() && self.left.is_none() && self.ranks.iter().all(|(_, rank)| early(rank))
    }

    /// How the attempt ended, in the words of rank 0 when its work was done; `None` where it said nothing, or where it was not
    /// to work at all.
    pub fn result(&self) -> Option<Ending> {
        let (_, left) = self.left.as_ref().filter(|_| self.versions.mismatch.is_none())?;
        Some(match left {
            Left::Complete => Ending::Finished,
            Left::Stopped => Ending::Stopped,
            Left::RolledBack(rollback) => Ending::RolledBack(rollback.clone()),
        })
    }

    /// Since when all is done and only the processes have to end.
    pub fn leaving(&self) -> Option<Seconds> {
        self.left.as_ref().map(|(since, _)| *since)
    }

    /// Why an attempt of `world` ranks failed, once its processes have ended.
    pub fn failure(&self, world: usize) -> Ending {
        self.trouble.failure(&self.ranks, world)
    }

    /// What has gone wrong among the processes of an attempt of `world` ranks, in words, if anything has.
    pub fn crash(&self, world: usize) -> Option<String> {
        self.trouble.crash(&self.ranks, world)
    }

    /// The host that the launcher's remarks are about: that of whom they name, if it is one.
    pub fn complained_of(&self) -> Option<String> {
        self.trouble.complained_of(&self.ranks)
    }
}

#[cfg(test)]
mod tests;
