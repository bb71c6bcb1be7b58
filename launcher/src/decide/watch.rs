//! What is known of an attempt while it runs, put together from what ranks and the launcher say; and why it failed.

use std::collections::{BTreeMap, VecDeque};

use lambert_config::exit;
use lambert_control::{EventKind, FailureKind};
use lambert_control::{Message, Versions, WorkerPhase, WorkerReport};

use super::Seconds;
use super::event::{Death, Exit, FromWorkers};

/// Steps that the median is taken over.
const WINDOW: usize = 50;

/// So many of the launcher's remarks are told, from the beginning of each so many characters.
const REMARKS: usize = 4;
const LONGEST_REMARK: usize = 300;

/// A rank, as last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// Process id on `host`.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Steps it has finished.
    pub step: u64,
    /// What its training thread is doing.
    pub phase: WorkerPhase,
    /// Since when.
    pub since: Seconds,
    /// When it last reported.
    pub heard: Seconds,
}

/// An attempt, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Watch {
    /// The host of each rank, by the name that the configuration gives it, where it does.
    places: Vec<String>,
    /// The ranks that have reported, by number.
    pub ranks: BTreeMap<usize, Rank>,
    /// Whether training has started.
    pub started: bool,
    /// Most steps that a rank has finished.
    pub step: u64,
    /// Whether a checkpoint was committed.
    pub committed: bool,
    /// When it was first known that something is wrong.
    pub trouble: Option<Seconds>,
    /// How the launcher, or the only rank, ended.
    pub exit: Option<Exit>,
    /// The first difference between two versions, in words.
    pub mixture: Option<String>,
    versions: Option<(usize, Versions)>,
    seconds: VecDeque<f64>,
    /// That the ranks leave in good order, and since when.
    left: Option<(Seconds, Left)>,
    /// The first death of a rank that the launcher has told of.
    pub death: Option<Death>,
    remarks: Vec<String>,
    failures: Vec<RankFailure>,
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

/// A failure that a rank told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankFailure {
    rank: usize,
    message: String,
    fault: FailureKind,
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

impl Watch {
    /// Of an attempt whose ranks are put on the hosts of these names.
    pub fn new(places: Vec<String>) -> Self {
        Self { places, ..Self::default() }
    }

    /// Takes in what came from the processes.
    pub fn take(&mut self, at: Seconds, what: FromWorkers) {
        match what {
            FromWorkers::Report(report) => self.report(at, report),
            FromWorkers::Message(rank, saying) => self.said(at, rank, saying),
            FromWorkers::Died(death) => {
                self.trouble.get_or_insert(at);
                self.death.get_or_insert(death);
            }
            FromWorkers::Remark(text) => self.remarks.push(text),
            FromWorkers::Exited(exit) => {
                self.trouble.get_or_insert(at);
                self.exit.get_or_insert(exit);
            }
            FromWorkers::Line(..) | FromWorkers::Gone(_) => {}
        }
    }

    fn report(&mut self, at: Seconds, report: WorkerReport) {
        let WorkerReport { rank, pid, host, step, phase, seconds_in_phase, versions, .. } = report;
        if let Some(versions) = versions {
            self.compare(rank, versions);
        }
        self.step = self.step.max(step);
        let since = at - seconds_in_phase.max(0.0);
        self.ranks.insert(rank, Rank { pid, host, step, phase, since, heard: at });
    }

    fn compare(&mut self, rank: usize, versions: Versions) {
        let Some((first, known)) = &self.versions else {
            self.versions = Some((rank, versions));
            return;
        };
        if let Some((what, one, other)) = known.first_difference(&versions) {
            let mixture = format!("rank {first} has {what} {one}, rank {rank} has {other}");
            self.mixture.get_or_insert(mixture);
        }
    }

    fn said(&mut self, at: Seconds, rank: usize, saying: Message) {
        let event = match saying {
            Message::Record(record) => {
                self.seconds.push_back(record.seconds);
                self.seconds.drain(..self.seconds.len().saturating_sub(WINDOW));
                self.step = self.step.max(record.step);
                return;
            }
            Message::Event(event) => event,
        };
        match event {
            EventKind::Started { .. } => self.started = true,
            EventKind::Checkpoint { .. } => self.committed = true,
            EventKind::Finished { stopped, .. } if rank == 0 => {
                self.left = Some((at, if stopped { Left::Stopped } else { Left::Complete }));
            }
            EventKind::RolledBack { message, step, to } if rank == 0 => {
                self.trouble.get_or_insert(at);
                self.left = Some((at, Left::RolledBack(Rollback { message, step, to })));
            }
            EventKind::Failed { message, kind: fault } => {
                self.trouble.get_or_insert(at);
                self.failures.push(RankFailure { rank, message, fault });
            }
            EventKind::Finished { .. }
            | EventKind::RolledBack { .. }
            | EventKind::Evaluation(_)
            | EventKind::Plateau { .. }
            | EventKind::Grown { .. }
            | EventKind::MicroBatch { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    /// The median of the last steps, seconds; `None` before the first.
    pub fn median_step(&self) -> Option<Seconds> {
        let mut seconds: Vec<f64> = self.seconds.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// Whether an end loses nothing: no step was finished and no checkpoint committed in this attempt, and no rank is further
    /// than its first step.
    pub fn is_fresh(&self) -> bool {
        let early = |rank: &Rank| matches!(rank.phase, WorkerPhase::Join | WorkerPhase::Load) || rank.phase.is_step();
        self.seconds.is_empty() && !self.committed && self.left.is_none() && self.ranks.values().all(early)
    }

    /// How the attempt ended, in the words of rank 0 when its work was done; `None` where it said nothing, or where it was not
    /// to work at all.
    pub fn result(&self) -> Option<Ending> {
        let (_, left) = self.left.as_ref().filter(|_| self.mixture.is_none())?;
        Some(match left {
            Left::Complete => Ending::Finished,
            Left::Stopped => Ending::Stopped,
            Left::RolledBack(rollback) => Ending::RolledBack(rollback.clone()),
        })
    }

    /// What has gone wrong among the processes of an attempt of `world` ranks, in words, if anything has.
    pub fn crash(&self, world: usize) -> Option<String> {
        let in_order = matches!(self.exit, None | Some(Exit::Code(exit::DONE | exit::STOPPED)));
        if in_order && self.death.is_none() && self.failures.is_empty() {
            return None;
        }
        match self.failure(world) {
            Ending::Failed(Failure { message, .. }) | Ending::Absent(message) | Ending::Unsupervised(message) => {
                Some(message)
            }
            Ending::Finished | Ending::Stopped | Ending::RolledBack(_) => None,
        }
    }

    /// Since when all is done and only the processes have to end.
    pub fn leaving(&self) -> Option<Seconds> {
        self.left.as_ref().map(|(since, _)| *since)
    }

    /// Why an attempt of `world` ranks failed, once its processes have ended: the first of these that is known: a fault that a
    /// rank says is lasting, a signal, what the dead rank said, what any rank said, how the process ended.
    pub fn failure(&self, world: usize) -> Ending {
        let lasting = |failure: &&RankFailure| !matches!(failure.fault, FailureKind::Transient | FailureKind::Host);
        let by = |rank: usize| self.failures.iter().find(|failure| failure.rank == rank);
        let host = || self.failures.iter().find(|failure| failure.fault == FailureKind::Host);
        let told = self.failures.iter().find(lasting).or_else(host);
        match (told, self.death) {
            (Some(told), _) => self.told(told),
            (None, _) if self.is_unsupervised() => {
                let cause = "this coordinator did not answer the ranks (was it suspended?), and they ended";
                Ending::Unsupervised(cause.to_owned())
            }
            (None, Some(Death::Signal { rank, signal })) => {
                let message = format!("{} was killed by signal {signal}", self.who(rank));
                Ending::Failed(Failure::passing(message))
            }
            (None, Some(Death::OutOfMemory { rank })) => {
                let message = format!("{} was killed: the memory of its job is used up", self.who(rank));
                Ending::Failed(Failure::passing(message))
            }
            (None, Some(Death::Exit { rank, code })) => match by(rank) {
                Some(told) => self.told(told),
                None => self.coded(format!("{} exited with code {code}", self.who(rank)), code),
            },
            (None, None) => match self.failures.first() {
                Some(told) => self.told(told),
                None => self.unexplained(world),
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

    fn told(&self, failure: &RankFailure) -> Ending {
        let message = format!("{} failed: {}", self.who(failure.rank), failure.message);
        let host = self.host(failure.rank).filter(|_| failure.fault == FailureKind::Host);
        Ending::Failed(Failure { message, fault: failure.fault, host })
    }

    /// Nobody said anything: the process's own end is all there is to tell.
    fn unexplained(&self, world: usize) -> Ending {
        let subject = if world == 1 { self.who(0) } else { "the launcher".to_owned() };
        let exit = self.exit.unwrap_or(Exit::Code(exit::FAILED));
        let mut message = format!("{subject} {exit}");
        if exit == Exit::Code(exit::DONE) {
            message.push_str(" before the ranks had said that they were done");
        }
        self.remarks.iter().take(REMARKS).for_each(|remark| message.push_str(&format!(": {}", brief(remark))));
        match exit {
            // One process is its rank: it did come up.
            _ if world > 1 && self.ranks.is_empty() => Ending::Absent(message),
            Exit::Code(code) => self.coded(message, code),
            Exit::Signal(_) => Ending::Failed(Failure { host: self.complained_of(), ..Failure::passing(message) }),
        }
    }

    fn coded(&self, message: String, code: i32) -> Ending {
        let fault = if code == exit::USAGE { FailureKind::Usage } else { FailureKind::Transient };
        Ending::Failed(Failure { message, fault, host: self.complained_of() })
    }

    /// The host of a rank, by the name under which it is avoided.
    pub fn host(&self, rank: usize) -> Option<String> {
        self.places.get(rank).or_else(|| Some(&self.ranks.get(&rank)?.host)).cloned()
    }

    /// The host that the launcher's remarks are about: that of whom they name, if it is one.
    pub fn complained_of(&self) -> Option<String> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_', ':'].contains(&c);
        let mut named: Vec<&String> = self
            .places
            .iter()
            .filter(|place| {
                let words = self.remarks.iter().flat_map(|remark| remark.split(|c| !is_of_name(c)));
                // A port, or the end of a sentence, may stand behind it.
                words
                    .filter_map(|word| word.strip_prefix(place.as_str()))
                    .any(|rest| rest.is_empty() || rest.starts_with(':') || rest == ".")
            })
            .collect();
        named.dedup();
        if let [name] = named[..] { Some(name.clone()) } else { None }
    }

    /// A rank in words.
    pub fn who(&self, rank: usize) -> String {
        match self.ranks.get(&rank) {
            Some(known) => format!("rank {rank} (pid {} on host {})", known.pid, known.host),
            None => format!("rank {rank} (which had not reported yet)"),
        }
    }
}

/// The beginning of what a launcher says: it tends to give advice for every system.
fn brief(remark: &str) -> String {
    match remark.char_indices().nth(LONGEST_REMARK) {
        Some((end, _)) => format!("{}...", &remark[..end]),
        None => remark.to_owned(),
    }
}

#[cfg(test)]
mod tests;
