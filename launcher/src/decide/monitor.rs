//! Monitoring of an attempt. Combines the events of the ranks and of the launcher, and determines why an attempt
//! failed.
//!
//! - `ranks`: ranks and hosts; `versions`: version check; `steps`: training progress
//! - `failure_signs`: failure signs and the cause of a failure; `coordinator_silence`: ranks without a reply

mod coordinator_silence;
mod failure_signs;
mod ranks;
mod steps;
mod versions;

use std::collections::BTreeSet;

use lambert_control::{EventKind, FailureKind, Message, WorkerPhase, WorkerReport};

use super::Seconds;
use super::event::WorkerEvent;
use super::placement::AttemptNodes;
pub use failure_signs::FailureSigns;
use failure_signs::RankFailure;
pub use ranks::{Rank, Ranks, name_list};
pub use steps::Steps;
pub use versions::VersionCheck;

/// Monitoring state of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptMonitor {
    /// Ranks and hosts.
    pub ranks: Ranks,
    /// Version check.
    pub versions: VersionCheck,
    /// Training progress.
    pub steps: Steps,
    pub failure_signs: FailureSigns,
    /// Time and kind of the end that rank 0 reported.
    reported_end: Option<(Seconds, ReportedEnd)>,
}

/// End of an attempt that rank 0 reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedEnd {
    /// All steps are done.
    Finished,
    /// The ranks saved a checkpoint and stopped, as requested.
    Stopped,
    /// The ranks exited so that the run can roll back and skip samples.
    RolledBack(Rollback),
}

/// A rollback reported by rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollback {
    /// Cause and consequence.
    pub message: String,
    /// Step at which the rollback was decided.
    pub step: u64,
    /// Last step that is kept. Checkpoints of later steps are invalid.
    pub last_kept: u64,
}

/// End of an attempt without a report of rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbnormalEnd {
    /// No rank ever reported.
    Absent(String),
    /// The ranks exited because this coordinator was suspended and did not answer.
    Unsupervised(String),
    /// The program of a rank, or one of its libraries, is missing on the host of the rank.
    NotLoaded(AttemptFailure),
    /// The attempt failed.
    Failed(AttemptFailure),
}

impl AbnormalEnd {
    /// Returns the description of the cause.
    pub fn into_message(self) -> String {
        match self {
            Self::Absent(message) | Self::Unsupervised(message) => message,
            Self::NotLoaded(failure) | Self::Failed(failure) => failure.message,
        }
    }
}

/// End of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    Reported(ReportedEnd),
    Abnormal(AbnormalEnd),
}

/// Cause of the failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFailure {
    /// Description of the rank and the failure.
    pub message: String,
    /// Kind of failure, which determines whether the coordinator restarts the run.
    pub kind: FailureKind,
    /// Hosts to avoid in later attempts. Empty if the cause is unknown or not a host.
    pub hosts: BTreeSet<String>,
}

impl AttemptFailure {
    /// Creates a transient failure: a retry may succeed.
    pub fn transient(message: String) -> Self {
        Self { message, kind: FailureKind::Transient, hosts: BTreeSet::new() }
    }
}

impl AttemptMonitor {
    /// Creates the monitor of an attempt. `rank_hosts` has the host of each rank. It is empty if the launcher chooses
    /// the hosts.
    pub fn new(rank_hosts: Vec<String>) -> Self {
        Self { ranks: Ranks::new(rank_hosts), ..Self::default() }
    }

    /// Sets the nodes of the Slurm job on which the attempt runs.
    pub fn on_nodes(mut self, nodes: AttemptNodes) -> Self {
        self.ranks.nodes = nodes;
        self
    }

    /// Applies an event.
    pub fn take(&mut self, at: Seconds, what: WorkerEvent) {
        match what {
            WorkerEvent::Listening { address, is_loopback } => {
                self.failure_signs.silence.listening(address, is_loopback);
            }
            WorkerEvent::Report(report) => self.report(at, report),
            WorkerEvent::Message(rank, Message::Event(event)) => self.event(at, rank, event),
            WorkerEvent::Message(_, Message::Record(record)) => self.steps.record(&record),
            WorkerEvent::Node(rank, node) => self.ranks.launched_on(rank, node),
            WorkerEvent::Died(death) => self.failure_signs.died(at, death),
            WorkerEvent::Remark(text) => self.failure_signs.remark(text),
            WorkerEvent::Exited(exit) => self.failure_signs.exited(at, exit),
            WorkerEvent::Line(rank, text) => self.failure_signs.line(rank, &text),
            WorkerEvent::Gone(_) => {}
        }
    }

    /// Registers that the coordinator was suspended, long enough for ranks to exit.
    pub fn suspended(&mut self, seconds: Seconds) {
        self.failure_signs.silence.suspended(seconds);
    }

    fn report(&mut self, at: Seconds, report: WorkerReport) {
        let WorkerReport { rank, pid, host, step, phase, seconds_in_phase, versions, gpu, .. } = report;
        if let Some(versions) = versions {
            self.versions.compare(rank, versions);
        }
        self.steps.reach(step);
        let (since, gpu) = (at - seconds_in_phase.max(0.0), gpu.map(|gpu| *gpu));
        self.ranks.insert(rank, Rank { pid, host, step, phase, since, last_report: at, gpu });
    }

    fn event(&mut self, at: Seconds, rank: usize, event: EventKind) {
        match event {
            EventKind::Started { .. } => self.steps.started = true,
            EventKind::Checkpoint { .. } => self.steps.committed = true,
            EventKind::Finished { stopped, .. } if rank == 0 => {
                self.reported_end = Some((at, if stopped { ReportedEnd::Stopped } else { ReportedEnd::Finished }));
            }
            EventKind::RolledBack { message, step, last_kept } if rank == 0 => {
                self.failure_signs.begin(at);
                self.reported_end = Some((at, ReportedEnd::RolledBack(Rollback { message, step, last_kept })));
            }
            EventKind::Failed { message, kind, missing } => {
                self.failure_signs.failed(at, RankFailure { rank, message, kind, missing });
            }
            EventKind::Finished { .. }
            | EventKind::RolledBack { .. }
            | EventKind::Evaluation(_)
            | EventKind::Plateau { .. }
            | EventKind::Grown { .. }
            | EventKind::MicroBatch { .. }
            | EventKind::Warning { .. }
            | EventKind::SaveFailed { .. } => {}
        }
    }

    /// True if ending the attempt loses nothing: no step is completed, no checkpoint is committed, and no rank is
    /// beyond its first step.
    pub fn is_fresh(&self) -> bool {
        let early = |rank: &Rank| matches!(rank.phase, WorkerPhase::Join | WorkerPhase::Load) || rank.phase.is_step();
        self.steps.are_none() && self.reported_end.is_none() && self.ranks.iter().all(|(_, rank)| early(rank))
    }

    /// End that rank 0 reported. `None` if rank 0 reported none, or if the versions do not match.
    pub fn reported_end(&self) -> Option<ReportedEnd> {
        let is_valid = self.versions.mismatch.is_none();
        self.reported_end.as_ref().filter(|_| is_valid).map(|(_, end)| end.clone())
    }

    /// Time at which rank 0 reported the end. Since then, only the exit of the processes is missing.
    pub fn reported_end_at(&self) -> Option<Seconds> {
        self.reported_end.as_ref().map(|(at, _)| *at)
    }

    /// Returns why an attempt of `world` ranks failed, once its processes have exited.
    pub fn failure(&self, world: usize) -> AbnormalEnd {
        self.failure_signs.failure(&self.ranks, world)
    }

    /// Describes the crash of an attempt of `world` ranks. Returns `None` if all processes exited normally.
    pub fn crash(&self, world: usize) -> Option<String> {
        self.failure_signs.crash(&self.ranks, world)
    }

    /// Adds the hosts of defective GPUs to a failure without a host.
    pub fn blame_defective_gpus(&self, failure: &mut AttemptFailure) {
        if failure.kind != FailureKind::Transient || !failure.hosts.is_empty() {
            return;
        }
        let ranks = self.ranks.with_defective_gpus();
        let note = self.ranks.first_xid_note(&ranks);
        failure.hosts = self.ranks.hosts_to_avoid(ranks);
        // The rank that has failed may be a peer of the rank with the defective GPU.
        if !failure.message.contains(" reported Xid ") {
            failure.message.push_str(&note);
        }
    }

    /// Hosts of the ranks with an error of the set-up. Empty if these are all hosts of an attempt on several hosts.
    pub fn misconfigured_hosts(&self) -> BTreeSet<String> {
        self.ranks.hosts_to_avoid(self.failure_signs.misconfigured_ranks())
    }

    /// Hosts named in the messages of the launcher.
    pub fn hosts_in_messages(&self) -> BTreeSet<String> {
        self.failure_signs.hosts_in_messages(&self.ranks)
    }
}

#[cfg(test)]
mod tests;
