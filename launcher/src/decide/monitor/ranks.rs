//! Ranks of an attempt: their last reports and their hosts.

use std::collections::{BTreeMap, btree_map};

use lambert_control::{GpuStatus, WorkerPhase};

use crate::decide::Seconds;

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
    /// Ranks that have reported, by number.
    reported: BTreeMap<usize, Rank>,
}

impl Ranks {
    /// Creates the ranks of an attempt on the hosts `rank_hosts`.
    pub fn new(rank_hosts: Vec<String>) -> Self {
        Self { rank_hosts, reported: BTreeMap::new() }
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

    /// Host of a rank: the configured name, or the name that the rank reported.
    pub fn host(&self, rank: usize) -> Option<String> {
        self.rank_hosts.get(rank).or_else(|| Some(&self.reported.get(&rank)?.host)).cloned()
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
        let gpu = self.reported.get(&rank).and_then(|known| known.gpu.as_ref());
        gpu.and_then(GpuStatus::xid_report).map_or(String::new(), |report| format!("; its {report}"))
    }

    /// Configured host named in `texts`. `None` unless they name exactly one configured host.
    pub fn host_named_in(&self, texts: &[String]) -> Option<String> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_', ':'].contains(&c);
        let is_named = |place: &&String| {
            let words = texts.iter().flat_map(|text| text.split(|c| !is_of_name(c)));
            // A port or a full stop may follow the name.
            words
                .filter_map(|word| word.strip_prefix(place.as_str()))
                .any(|rest| rest.is_empty() || rest.starts_with(':') || rest == ".")
        };
        let mut named: Vec<&String> = self.rank_hosts.iter().filter(is_named).collect();
        named.dedup();
        if let [name] = named[..] { Some(name.clone()) } else { None }
    }
}
