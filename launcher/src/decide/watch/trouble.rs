//! What has gone wrong in an attempt, from the launcher and from the ranks; and which of it is the cause.

use lambert_config::exit;
use lambert_control::FailureKind;

use super::{Ending, Ranks};
use crate::decide::Seconds;
use crate::decide::event::{Death, Exit};

/// So many of the launcher's remarks are told, from the beginning of each so many characters.
const REMARKS: usize = 4;
const LONGEST_REMARK: usize = 300;

/// The signs that something is wrong.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trouble {
    /// When it was first known.
    pub since: Option<Seconds>,
    /// How the launcher, or the only rank, ended.
    exit: Option<Exit>,
    /// The first death of a rank that the launcher has told of.
    death: Option<Death>,
    /// What else the launcher has said.
    remarks: Vec<String>,
    failures: Vec<RankFailure>,
}

/// A failure that a rank told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFailure {
    pub rank: usize,
    pub message: String,
    pub fault: FailureKind,
}

impl RankFailure {
    fn ending(&self, ranks: &Ranks) -> Ending {
        let message = format!("{} failed: {}", ranks.who(self.rank), self.message);
        let host = ranks.host(self.rank).filter(|_| self.fault == FailureKind::Host);
        Ending::Failed(Failure { message, fault: self.fault, host })
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which rank and how, for people.
    pub message: String,
    /// What a new attempt may hope for.
    pub fault: FailureKind,
    /// The host that is to blame, if one is.
    pub host: Option<String>,
}

impl Failure {
    /// Something that a new attempt may be spared.
    pub fn passing(message: String) -> Self {
        Self { message, fault: FailureKind::Transient, host: None }
    }
}

impl Trouble {
    pub(super) fn begin(&mut self, at: Seconds) {
        self.since.get_or_insert(at);
    }

    pub(super) fn died(&mut self, at: Seconds, death: Death) {
        self.begin(at);
        self.death.get_or_insert(death);
    }

    pub(super) fn exited(&mut self, at: Seconds, exit: Exit) {
        self.begin(at);
        self.exit.get_or_insert(exit);
    }

    pub(super) fn failed(&mut self, at: Seconds, failure: RankFailure) {
        self.begin(at);
        self.failures.push(failure);
    }

    pub(super) fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }

    /// Whether the launcher or a rank has ended.
    pub fn has_ended(&self) -> bool {
        self.exit.is_some() || self.death.is_some()
    }

    /// What has gone wrong among the processes of an attempt of `world` ranks, in words, if anything has.
    pub fn crash(&self, ranks: &Ranks, world: usize) -> Option<String> {
        let in_order = matches!(self.exit, None | Some(Exit::Code(exit::DONE | exit::STOPPED)));
        if in_order && self.death.is_none() && self.failures.is_empty() {
            return None;
        }
        match self.failure(ranks, world) {
            Ending::Failed(Failure { message, .. }) | Ending::Absent(message) | Ending::Unsupervised(message) => {
                Some(message)
            }
            Ending::Finished | Ending::Stopped | Ending::RolledBack(_) => None,
        }
    }

    /// Why an attempt of `world` ranks failed, once its processes have ended: the first of these that is known: a fault that a
    /// rank says is lasting, a signal, what the dead rank said, what any rank said, how the process ended.
    pub fn failure(&self, ranks: &Ranks, world: usize) -> Ending {
        let lasting = |failure: &&RankFailure| !matches!(failure.fault, FailureKind::Transient | FailureKind::Host);
        let by = |rank: usize| self.failures.iter().find(|failure| failure.rank == rank);
        let host = || self.failures.iter().find(|failure| failure.fault == FailureKind::Host);
        let told = self.failures.iter().find(lasting).or_else(host);
        match (told, self.death) {
            (Some(told), _) => told.ending(ranks),
            (None, _) if self.is_unsupervised() => {
                let cause = "this coordinator did not answer the ranks (was it suspended?), and they ended";
                Ending::Unsupervised(cause.to_owned())
            }
            (None, Some(Death::Signal { rank, signal })) => {
                let message = format!("{} was killed by signal {signal}", ranks.who(rank));
                Ending::Failed(Failure::passing(message))
            }
            (None, Some(Death::OutOfMemory { rank })) => {
                let message = format!("{} was killed: the memory of its job is used up", ranks.who(rank));
                Ending::Failed(Failure::passing(message))
            }
            (None, Some(Death::Exit { rank, code })) => match by(rank) {
                Some(told) => told.ending(ranks),
                None => self.coded(ranks, format!("{} exited with code {code}", ranks.who(rank)), code),
            },
            (None, None) => match self.failures.first() {
                Some(told) => told.ending(ranks),
                None => self.unexplained(ranks, world),
            },
        }
    }

    fn is_unsupervised(&self) -> bool {
        match self.death {
            Some(Death::Exit { code, .. }) => code == exit::UNSUPERVISED,
            Some(_) => false,
            None => self.exit == Some(Exit::Code(exit::UNSUPERVISED)),
        }
    }

    /// Nobody said anything: the process's own end is all there is to tell.
    fn unexplained(&self, ranks: &Ranks, world: usize) -> Ending {
        let subject = if world == 1 { ranks.who(0) } else { "the launcher".to_owned() };
        let exit = self.exit.unwrap_or(Exit::Code(exit::FAILED));
        let mut message = format!("{subject} {exit}");
        if exit == Exit::Code(exit::DONE) {
            message.push_str(" before the ranks had said that they were done");
        }
        self.remarks.iter().take(REMARKS).for_each(|remark| message.push_str(&format!(": {}", brief(remark))));
        match exit {
            // One process is its rank: it did come up.
            _ if world > 1 && ranks.is_empty() => Ending::Absent(message),
            Exit::Code(code) => self.coded(ranks, message, code),
            Exit::Signal(_) => Ending::Failed(Failure { host: self.complained_of(ranks), ..Failure::passing(message) }),
        }
    }

    fn coded(&self, ranks: &Ranks, message: String, code: i32) -> Ending {
        let fault = if code == exit::USAGE { FailureKind::Usage } else { FailureKind::Transient };
        Ending::Failed(Failure { message, fault, host: self.complained_of(ranks) })
    }

    /// The host that the launcher's remarks are about: that of whom they name, if it is one.
    pub fn complained_of(&self, ranks: &Ranks) -> Option<String> {
        ranks.host_named_in(&self.remarks)
    }
}

/// The beginning of what a launcher says: it tends to give advice for every system.
fn brief(remark: &str) -> String {
    match remark.char_indices().nth(LONGEST_REMARK) {
        Some((end, _)) => format!("{}...", &remark[..end]),
        None => remark.to_owned(),
    }
}
