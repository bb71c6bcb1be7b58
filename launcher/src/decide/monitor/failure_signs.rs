//! Collects what the launcher and the ranks report about a failed attempt, and selects the cause.

use std::collections::{BTreeMap, BTreeSet};

use lambert_config::exit;
use lambert_control::FailureKind;

use super::coordinator_silence::CoordinatorSilence;
use super::ranks::name_list;
use super::{AbnormalEnd, AttemptFailure, Ranks};
use crate::decide::Seconds;
use crate::decide::event::{ProcessExit, RankDeath};
use crate::text::signal_name;

/// Maximum number of launcher messages quoted in an error.
const MAX_MESSAGES: usize = 4;
/// Maximum number of launcher messages that are kept.
const MAX_REMARKS: usize = 200;
/// Maximum characters quoted from each message.
const MAX_MESSAGE_CHARS: usize = 300;

/// Messages of Open MPI 4 and 5 if they find no program that starts processes on other hosts.
const NO_REMOTE_START: [&str; 2] = ["\"plm_rsh_agent\" was set to a path", "No available launching agents were found"];

/// Exit code of a program that the dynamic loader cannot load, or that a shell does not find.
const NOT_LOADED: i32 = 127;
/// Messages of the dynamic loader of glibc.
const LOADER_ERRORS: [&str; 2] = [": error while loading shared libraries: ", ": symbol lookup error: "];

/// Signs of a failure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FailureSigns {
    /// Time of the first sign of the failure.
    pub since: Option<Seconds>,
    /// Exit of the launcher, or of the only rank.
    exit: Option<ProcessExit>,
    /// First rank death reported by the launcher.
    death: Option<RankDeath>,
    /// Other messages from the launcher.
    remarks: Vec<String>,
    /// First error of the dynamic loader that a rank printed, with the rank.
    loader_error: Option<(usize, String)>,
    failures: Vec<RankFailure>,
    /// Possible reasons for exits with [`exit::UNSUPERVISED`].
    pub(super) silence: CoordinatorSilence,
}

/// A failure reported by a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFailure {
    pub rank: usize,
    pub message: String,
    pub kind: FailureKind,
    /// Ranks that did not take part in a failed all-reduce.
    pub missing: Vec<usize>,
}

impl FailureSigns {
    pub(super) fn begin(&mut self, at: Seconds) {
        self.since.get_or_insert(at);
    }

    pub(super) fn died(&mut self, at: Seconds, death: RankDeath) {
        self.begin(at);
        self.death.get_or_insert(death);
    }

    pub(super) fn exited(&mut self, at: Seconds, exit: ProcessExit) {
        self.begin(at);
        self.exit.get_or_insert(exit);
    }

    pub(super) fn failed(&mut self, at: Seconds, failure: RankFailure) {
        self.begin(at);
        self.failures.push(failure);
    }

    pub(super) fn remark(&mut self, text: String) {
        // A launcher may print warnings for weeks. The first and the last lines are kept.
        if self.remarks.len() == MAX_REMARKS {
            self.remarks.remove(MAX_REMARKS / 2);
        }
        self.remarks.push(text);
    }

    /// Keeps the first error of the dynamic loader among the lines of the ranks.
    pub(super) fn line(&mut self, rank: usize, text: &str) {
        if self.loader_error.is_none() {
            let error = LOADER_ERRORS.iter().find_map(|start| Some(text.split_once(start)?.1));
            self.loader_error = error.map(|error| (rank, truncate(error.trim())));
        }
    }

    /// True if the launcher or a rank has exited.
    pub fn has_ended(&self) -> bool {
        self.exit.is_some() || self.death.is_some()
    }

    /// Describes the crash of an attempt of `world` ranks. Returns `None` if there is no sign of a failure.
    pub fn crash(&self, ranks: &Ranks, world: usize) -> Option<String> {
        let exited_normally = matches!(self.exit, None | Some(ProcessExit::Code(exit::DONE | exit::INTERRUPTED)));
        if exited_normally && self.death.is_none() && self.failures.is_empty() {
            return None;
        }
        Some(self.failure(ranks, world).into_message())
    }

    /// Returns the cause of a failed attempt of `world` ranks, once its processes have exited. The first of these
    /// causes that applies:
    ///
    /// 1. a permanent failure that a rank reported
    /// 2. host failures that ranks reported. Failures on several hosts are transient, and no host is the cause.
    /// 3. workers that exited because they got no reply from the coordinator
    /// 4. the death of the first rank that died: its signal, an out-of-memory kill, its own report or its exit code. Exit
    ///    code 127 without a report means that the program did not load.
    /// 5. the first report of any rank
    /// 6. the exit status of the launcher or of the only rank
    pub fn failure(&self, ranks: &Ranks, world: usize) -> AbnormalEnd {
        let is_permanent = |failure: &&RankFailure| !matches!(failure.kind, FailureKind::Transient | FailureKind::Host);
        let failure_of = |rank: usize| self.failures.iter().find(|failure| failure.rank == rank);
        if let Some(permanent) = self.failures.iter().find(is_permanent) {
            return self.reported(permanent, ranks);
        }
        if let Some(first) = self.failures.iter().find(|failure| failure.kind == FailureKind::Host) {
            return self.failure_of_several_hosts(first, ranks).unwrap_or_else(|| self.reported(first, ranks));
        }
        match self.death {
            Some(RankDeath::Exit { rank, code: exit::UNSUPERVISED }) => {
                self.silence.attempt_end(ranks, Some(rank), self.since)
            }
            None if self.exit == Some(ProcessExit::Code(exit::UNSUPERVISED)) => {
                self.silence.attempt_end(ranks, (world == 1).then_some(0), self.since)
            }
            Some(RankDeath::Signal { rank, signal }) => {
                let message = format!("{} killed by {}{}", ranks.who(rank), signal_name(signal), ranks.xid_note(rank));
                AbnormalEnd::Failed(AttemptFailure::transient(message))
            }
            Some(RankDeath::OutOfMemory { rank }) => {
                let message = format!("{} killed: out of memory (memory limit of the job)", ranks.who(rank));
                AbnormalEnd::Failed(AttemptFailure::transient(message))
            }
            Some(RankDeath::Exit { rank, code }) => match failure_of(rank) {
                Some(reported) => self.reported(reported, ranks),
                None if code == NOT_LOADED && !ranks.has(rank) => self.not_loaded(Some(rank), ranks),
                None => {
                    let message = format!("{} exited with code {code}{}", ranks.who(rank), ranks.xid_note(rank));
                    self.exit_code_failure(ranks, message, code)
                }
            },
            None => match self.failures.first() {
                Some(reported) => self.reported(reported, ranks),
                None if self.has_not_loaded(ranks) => {
                    self.not_loaded(self.loader_error.as_ref().map(|(rank, _)| *rank), ranks)
                }
                None => self.unreported(ranks, world),
            },
        }
    }

    /// Describes a failure that a rank reported.
    fn reported(&self, reported: &RankFailure, ranks: &Ranks) -> AbnormalEnd {
        let RankFailure { rank, message, kind, missing } = reported;
        let mut message = format!("{} failed: {message}{}", ranks.who(*rank), ranks.xid_note(*rank));
        let hosts = match kind {
            FailureKind::Host => ranks.hosts([*rank]),
            _ if missing.is_empty() => BTreeSet::new(),
            _ => ranks.hosts_to_avoid(self.missing_ranks()),
        };
        if *kind != FailureKind::Host && !hosts.is_empty() {
            let noun = if hosts.len() == 1 { "host" } else { "hosts" };
            message.push_str(&format!("; missing {noun}: {}", name_list(&hosts)));
        }
        AbnormalEnd::Failed(AttemptFailure { message, kind: *kind, hosts })
    }

    /// Returns a transient failure if ranks on several hosts reported host failures, `first` first. For example, a
    /// shared file system is unavailable. `None` if the failures are on one host.
    fn failure_of_several_hosts(&self, first: &RankFailure, ranks: &Ranks) -> Option<AbnormalEnd> {
        let failures = self.failures.iter().filter(|failure| failure.kind == FailureKind::Host);
        let failed: BTreeSet<usize> = failures.map(|failure| failure.rank).collect();
        let (count, hosts) = (failed.len(), ranks.hosts(failed).len());
        let who = ranks.who(first.rank);
        let message = format!("{count} ranks on {hosts} hosts failed, first {who}: {}", first.message);
        (hosts > 1).then(|| AbnormalEnd::Failed(AttemptFailure::transient(message)))
    }

    /// Ranks that more than half of the reports of failed all-reduces name as missing. A rank that has lost its network
    /// names all others, but they name only this rank.
    fn missing_ranks(&self) -> Vec<usize> {
        let reports = self.failures.iter().filter(|failure| !failure.missing.is_empty());
        let (mut count, mut named) = (0, BTreeMap::<usize, usize>::new());
        for failure in reports {
            count += 1;
            failure.missing.iter().for_each(|rank| *named.entry(*rank).or_default() += 1);
        }
        named.into_iter().filter(|(_, times)| 2 * times > count).map(|(rank, _)| rank).collect()
    }

    /// Describes a failure that no rank reported, from the exit status and the messages of the launcher.
    fn unreported(&self, ranks: &Ranks, world: usize) -> AbnormalEnd {
        if self.remarks.iter().any(|remark| NO_REMOTE_START.iter().any(|sign| remark.contains(sign))) {
            let message = "mpirun found no ssh in PATH to start the ranks on other hosts; install ssh, or name \
                           another program in cluster.mpirun_arguments (plm_rsh_agent of Open MPI 4, plm_ssh_agent of \
                           Open MPI 5)";
            return AbnormalEnd::Failed(AttemptFailure {
                message: message.to_owned(),
                kind: FailureKind::Usage,
                hosts: BTreeSet::new(),
            });
        }
        let subject = if world == 1 { ranks.who(0) } else { "the launcher".to_owned() };
        let exit = self.exit.unwrap_or(ProcessExit::Code(exit::FAILED));
        let mut message = format!("{subject} {exit}");
        if exit == ProcessExit::Code(exit::DONE) {
            message.push_str(" before the workers reported completion");
        }
        self.remarks.iter().take(MAX_MESSAGES).for_each(|remark| message.push_str(&format!(": {}", truncate(remark))));
        if world == 1 {
            message.push_str(&ranks.xid_note(0));
        }
        match exit {
            // With several ranks, no rank has connected. With one rank, the process is the rank, so the rank did start.
            _ if world > 1 && ranks.is_empty() => AbnormalEnd::Absent(message),
            ProcessExit::Code(code) => self.exit_code_failure(ranks, message, code),
            ProcessExit::Signal(_) => AbnormalEnd::Failed(AttemptFailure {
                hosts: ranks.unless_all(self.hosts_in_messages(ranks)),
                ..AttemptFailure::transient(message)
            }),
        }
    }

    /// True if the exit code of the only rank, or of a launcher that reports no death, shows that the program of a rank did not
    /// load. A launcher has the exit code of the first rank that fails. With other messages, its own programs may be missing.
    fn has_not_loaded(&self, ranks: &Ranks) -> bool {
        self.exit == Some(ProcessExit::Code(NOT_LOADED))
            && match &self.loader_error {
                Some((rank, _)) => !ranks.has(*rank),
                None => ranks.is_empty() && self.remarks.is_empty(),
            }
    }

    /// Describes a rank whose program did not load. `None`: an unknown rank.
    fn not_loaded(&self, rank: Option<usize>, ranks: &Ranks) -> AbnormalEnd {
        let who = rank.map_or(String::new(), |rank| format!(" for rank {rank}"));
        let host = rank.and_then(|rank| ranks.host(rank)).map_or(String::new(), |host| format!(" on host {host}"));
        let error = self.loader_error.as_ref().map_or(String::new(), |(_, error)| format!(": {error}"));
        let message = format!(
            "lambert-worker did not load{who}{host} (exit code {NOT_LOADED}){error}; install lambert-worker and \
             its libraries there (the same paths on all hosts), and check them with `lambert-worker --version`"
        );
        AbnormalEnd::NotLoaded(AttemptFailure { message, kind: FailureKind::Host, hosts: ranks.hosts(rank) })
    }

    fn exit_code_failure(&self, ranks: &Ranks, message: String, code: i32) -> AbnormalEnd {
        let kind = if code == exit::USAGE { FailureKind::Usage } else { FailureKind::Transient };
        let hosts = ranks.unless_all(self.hosts_in_messages(ranks));
        AbnormalEnd::Failed(AttemptFailure { message, kind, hosts })
    }

    /// Ranks that reported an error of the set-up, or died with its exit code.
    pub(super) fn misconfigured_ranks(&self) -> Vec<usize> {
        let reported = self.failures.iter().filter(|failure| failure.kind == FailureKind::Usage);
        let died = match self.death {
            Some(RankDeath::Exit { rank, code: exit::USAGE }) => Some(rank),
            _ => None,
        };
        reported.map(|failure| failure.rank).chain(died).collect()
    }

    /// Hosts named in the messages of the launcher.
    pub fn hosts_in_messages(&self, ranks: &Ranks) -> BTreeSet<String> {
        ranks.hosts_named_in(&self.remarks)
    }
}

/// Returns the start of a launcher message. The rest is usually generic advice.
fn truncate(remark: &str) -> String {
    match remark.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &remark[..end]),
        None => remark.to_owned(),
    }
}
