//! Ranks of an attempt: their last reports and their hosts.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use lambert_control::{GpuStatus, WorkerPhase};

use crate::decide::Seconds;
use crate::decide::placement::AttemptNodes;

/// Maximum number of ranks or hosts that a message names.
const MAX_NAMES: usize = 4;

/// Last report of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// Process ID on `host`.
    pub pid: u32,
    pub host: String,
    /// Number of completed steps.
    pub step: u64,
    /// Phase of the training thread.
    pub phase: WorkerPhase,
    /// Start of the phase.
    pub since: Seconds,
    /// Time of the last report.
    pub last_report: Seconds,
    pub gpu: Option<GpuStatus>,
}

/// The ranks of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranks {
    /// Configured host name of each rank. Empty if no hosts are configured.
    rank_hosts: Vec<String>,
    /// Nodes of the Slurm job, if the launcher chooses the hosts.
    pub(super) nodes: AttemptNodes,
    /// Nodes that the launcher named, by rank.
    launched: BTreeMap<usize, String>,
    /// Ranks that have reported, by number.
    reported: BTreeMap<usize, Rank>,
}

impl Ranks {
    /// Creates the ranks of an attempt on the hosts `rank_hosts`.
    pub fn new(rank_hosts: Vec<String>) -> Self {
        Self { rank_hosts, ..Self::default() }
    }

    pub(super) fn launched_on(&mut self, rank: usize, node: String) {
        self.launched.insert(rank, node);
    }

    pub(super) fn insert(&mut self, number: usize, rank: Rank) {
        self.reported.insert(number, rank);
    }

    /// True if no rank has reported.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }

    /// True if `rank` has reported.
    pub fn has(&self, rank: usize) -> bool {
        self.reported.contains_key(&rank)
    }

    /// Iterates over the ranks that have reported, in the order of their numbers.
    pub fn iter(&self) -> btree_map::Iter<'_, usize, Rank> {
        self.reported.iter()
    }

    /// True if at least one rank has reported, and `condition` is true for every rank that has reported.
    pub fn are_all(&self, condition: impl Fn(&Rank) -> bool) -> bool {
        !self.is_empty() && self.reported.values().all(condition)
    }

    /// Time of the last report of a rank.
    pub fn last_report(&self, rank: usize) -> Option<Seconds> {
        self.reported.get(&rank).map(|known| known.last_report)
    }

    /// Host of a rank: the configured name, the name of its node in Slurm, or the name that the rank reported.
    pub fn host(&self, rank: usize) -> Option<String> {
        let named = self.rank_hosts.get(rank).or_else(|| self.launched.get(&rank));
        let reported = || Some(&self.reported.get(&rank)?.host).map(|host| self.nodes.find(host).unwrap_or(host));
        named.or_else(reported).cloned()
    }

    /// Hosts of `absent`, ranks that have not reported, to avoid in later attempts. If each node of a Slurm job has ranks,
    /// these are also the nodes from which no rank has reported.
    pub fn hosts_of_absent(&self, absent: &[usize]) -> BTreeSet<String> {
        let mut hosts = self.hosts(absent.iter().copied());
        if self.nodes.all_have_ranks && self.are_on_known_nodes() {
            let heard = self.hosts(self.reported.keys().copied());
            hosts.extend(self.nodes.names.iter().filter(|node| !heard.contains(*node)).cloned());
        }
        self.unless_all(hosts)
    }

    /// Ranks whose GPU is defective.
    pub fn with_defective_gpus(&self) -> Vec<usize> {
        let is_defective = |rank: &Rank| rank.gpu.as_ref().is_some_and(GpuStatus::is_defective);
        self.reported.iter().filter(|(_, rank)| is_defective(rank)).map(|(number, _)| *number).collect()
    }

    /// True if the nodes of the job are known, and those of all ranks that have reported are among them.
    fn are_on_known_nodes(&self) -> bool {
        let is_known = |rank: &usize| self.host(*rank).is_some_and(|host| self.nodes.names.contains(&host));
        !self.nodes.names.is_empty() && self.reported.keys().all(is_known)
    }

    /// Known hosts of the attempt.
    fn all_hosts(&self) -> BTreeSet<String> {
        match self.rank_hosts.is_empty() {
            false => self.rank_hosts.iter().cloned().collect(),
            true if self.are_on_known_nodes() => self.nodes.names.iter().cloned().collect(),
            true => self.hosts(self.reported.keys().copied()),
        }
    }

    /// Hosts of `ranks`, to avoid in later attempts. Empty if these are all hosts of an attempt on several hosts: then
    /// other hosts are no better.
    pub fn hosts_to_avoid(&self, ranks: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
        self.unless_all(self.hosts(ranks))
    }

    /// Returns `hosts`, or nothing if these are all hosts of an attempt on several hosts.
    pub fn unless_all(&self, hosts: BTreeSet<String>) -> BTreeSet<String> {
        let all = self.all_hosts();
        if all.len() > 1 && hosts.is_superset(&all) { BTreeSet::new() } else { hosts }
    }

    /// Known hosts of `ranks`.
    pub fn hosts(&self, ranks: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
        ranks.into_iter().filter_map(|rank| self.host(rank)).collect()
    }

    /// Description of several ranks for messages: `64 ranks on 8 hosts (node001, node002, node003, ...)`.
    pub fn who_all(&self, ranks: &[usize]) -> String {
        let (hosts, count) = (self.hosts(ranks.iter().copied()), ranks.len());
        match hosts.len() {
            _ if ranks.iter().any(|rank| self.host(*rank).is_none()) => format!("{count} ranks ({})", name_list(ranks)),
            1 => format!("{count} ranks on host {}", name_list(&hosts)),
            several => format!("{count} ranks on {several} hosts ({})", name_list(&hosts)),
        }
    }

    /// Description of a rank for messages.
    pub fn who(&self, rank: usize) -> String {
        match self.reported.get(&rank) {
            Some(known) => format!("rank {rank} (pid {}, host {})", known.pid, known.host),
            None => format!("rank {rank} (not yet reported)"),
        }
    }

    /// Xid errors of the GPU of a rank, for the end of a failure message. Empty if there are none.
    pub fn xid_note(&self, rank: usize) -> String {
        self.xid_report(rank).map_or(String::new(), |report| format!("; its {report}"))
    }

    /// Xid errors of the GPU of the first of several ranks that has any, for the end of a failure message.
    pub fn first_xid_note(&self, ranks: &[usize]) -> String {
        let first = ranks.iter().find_map(|rank| Some((rank, self.xid_report(*rank)?)));
        first.map_or(String::new(), |(rank, report)| format!("; rank {rank}: {report}"))
    }

    fn xid_report(&self, rank: usize) -> Option<String> {
        self.reported.get(&rank)?.gpu.as_ref().and_then(GpuStatus::xid_report)
    }

    /// Hosts of the attempt named in messages of the launcher. The host that reports a message is not included.
    pub fn hosts_named_in(&self, texts: &[String]) -> BTreeSet<String> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_', ':'].contains(&c);
        let is_named = |place: &&String| {
            let words = texts.iter().flat_map(|text| without_reporter(text));
            let words = words.flat_map(|text| text.split(|c| !is_of_name(c)));
            // A port or a full stop may follow the name.
            words
                .filter_map(|word| word.strip_prefix(place.as_str()))
                .any(|rest| rest.is_empty() || rest.starts_with(':') || rest == ".")
        };
        let hosts: BTreeSet<&String> = self.rank_hosts.iter().chain(&self.nodes.names).collect();
        hosts.into_iter().filter(is_named).cloned().collect()
    }
}

/// Lists names for a message: all of up to `MAX_NAMES` names, otherwise the first names and `...`.
pub fn name_list<T: ToString>(names: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>) -> String {
    let names = names.into_iter();
    let shown = if names.len() > MAX_NAMES { MAX_NAMES - 1 } else { MAX_NAMES };
    let more = (names.len() > shown).then(|| "...".to_owned());
    names.take(shown).map(|name| name.to_string()).chain(more).collect::<Vec<_>>().join(", ")
}

/// Returns the parts of a message of Open MPI that may name a failed host. `[HOST:PID]` at the start of a message is the
/// process that reports it. `HNP daemon` is mpirun itself.
fn without_reporter(text: &str) -> Vec<&str> {
    let is_reporter = |tag: &str| {
        tag.rsplit_once(':').is_some_and(|(_, pid)| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let tagged = text.strip_prefix('[').and_then(|text| text.split_once("] ")).filter(|(tag, _)| is_reporter(tag));
    let text = tagged.map_or(text, |(_, text)| text);
    match text.split_once("HNP daemon") {
        Some((before, after)) => vec![before, after.split_once("Remote daemon").map_or("", |(_, remote)| remote)],
        None => vec![text],
    }
}
