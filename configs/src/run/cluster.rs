//! The machines of a run, the start of ranks on them, and time limits.

use serde::{Deserialize, Serialize};

use super::all_reduce::AllReduce;
use super::restart::Restart;

/// What starts the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LauncherKind {
    /// `direct` for one rank without MPI, `srun` for several in a Slurm job, else `mpirun`.
    #[default]
    Auto,
    /// The coordinator itself starts the only rank.
    Direct,
    /// Open MPI's mpirun, 4 or 5.
    Mpirun,
    /// Slurm's srun with PMIx, on the nodes of the job.
    Srun,
}

/// The machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Worker processes in all.
    pub ranks: usize,
    /// Hosts for ranks, as `NAME` or `NAME:RANKS` (`[ADDRESS]:RANKS` for IPv6); none: this host, or what Slurm has given.
    /// They are filled in order; those that are not needed stand in for one that fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// What starts the ranks.
    pub launcher: LauncherKind,
    /// Arguments added to mpirun's command line.
    pub mpirun_arguments: Vec<String>,
    /// Arguments added to srun's command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub srun_arguments: Vec<String>,
    /// Variables passed on to the ranks on other hosts beside the usual ones; `NAME` or `PREFIX_*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// A folder on each host, with an absolute path, for files of what the ranks there print; `none`: no files. The usual
    /// place is `/tmp/lambert-logs-UID`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub log_folder: String,
    /// The sum of the gradients.
    pub all_reduce: AllReduce,
    /// Limits of restarts.
    pub restart: Restart,
    /// Where the coordinator listens.
    pub control: ControlChannel,
    /// Where copies of datasets in object stores are kept on each host.
    pub dataset_cache: DatasetCache,
    /// How long a rank may be in a phase.
    pub limits: Limits,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            ranks: 1,
            hosts: Vec::new(),
            launcher: LauncherKind::Auto,
            mpirun_arguments: Vec::new(),
            srun_arguments: Vec::new(),
            environment: Vec::new(),
            log_folder: String::new(),
            all_reduce: AllReduce::default(),
            restart: Restart::default(),
            control: ControlChannel::default(),
            dataset_cache: DatasetCache::default(),
            limits: Limits::default(),
        }
    }
}

/// Where copies of datasets in object stores are kept on a host; all its ranks share them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetCache {
    /// A folder on a disk of the host; empty for /var/tmp/lambert-USER, with the user's number.
    pub folder: String,
    /// What it may hold, GB; the copies that were used least recently go first. A dataset that is larger is fetched again and
    /// again.
    pub gigabytes: f64,
}

impl Default for DatasetCache {
    fn default() -> Self {
        Self { folder: String::new(), gigabytes: 200.0 }
    }
}

/// Where the coordinator listens for ranks on other hosts; those on its own reach it over the loopback interface.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlChannel {
    /// The name or address by which ranks reach the coordinator; none: found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The network interface to listen on; none: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The first and the last port to listen on; none: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<[u16; 2]>,
}

/// How long a rank may go without progress before its attempt is ended, seconds; 0 is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Without a word from a process, which reports every two seconds. Longer than `stall_seconds`: the ranks that wait for it
    /// know first which one it is.
    pub silence_seconds: f64,
    /// In a sum over the ranks, without any part of it having arrived, until ranks that do not answer are given up.
    pub stall_seconds: f64,
    /// From the start of the processes until all have found each other.
    pub join_seconds: f64,
    /// Opening datasets, loading the checkpoint.
    pub load_seconds: f64,
    /// The least limit of a step, once the run's step time is known.
    pub step_seconds: f64,
    /// A step's limit in medians of the last steps, where that is more.
    pub step_medians: f64,
    /// A step, while the run's step time is not known.
    pub first_step_seconds: f64,
    /// Measuring the held-out loss.
    pub evaluate_seconds: f64,
    /// Waiting for a checkpoint, beyond `checkpoint.give_up_minutes`.
    pub save_seconds: f64,
    /// Leaving; and from a request to stop until the last checkpoint is saved.
    pub stop_seconds: f64,
    /// A coordinator that has not answered its workers for so long is gone, and they end.
    pub coordinator_seconds: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            silence_seconds: 90.0,
            stall_seconds: 60.0,
            join_seconds: 600.0,
            load_seconds: 3600.0,
            step_seconds: 300.0,
            step_medians: 10.0,
            first_step_seconds: 7200.0,
            evaluate_seconds: 7200.0,
            save_seconds: 3600.0,
            stop_seconds: 600.0,
            coordinator_seconds: 45.0,
        }
    }
}

/// A host, and how many ranks may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// Ranks at most.
    pub ranks: usize,
}

impl Cluster {
    /// In place of a folder: what ranks print is not kept on their hosts.
    pub const NO_LOGS: &str = "none";

    /// The hosts that the configuration names, in its order.
    ///
    /// # Errors
    /// The first entry that is none, and what was expected.
    pub fn host_list(&self) -> Result<Vec<Host>, String> {
        self.hosts.iter().map(|entry| parse_host(entry)).collect()
    }
}

fn parse_host(entry: &str) -> Result<Host, String> {
    let wrong = || format!("{entry:?} is no host: NAME, NAME:RANKS or [IPV6]:RANKS is expected");
    let (name, ranks) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (address, rest.strip_prefix(':').unwrap_or(if rest.is_empty() { "1" } else { "" }))
        }
        None => entry.rsplit_once(':').unwrap_or((entry, "1")),
    };
    let plain = entry.starts_with('[') || !name.contains(':');
    let ranks: usize = ranks.parse().map_err(|_| wrong())?;
    let is_name = !name.is_empty() && !name.starts_with('-') && !name.contains([',', ' ', '/']);
    if plain && is_name && ranks > 0 { Ok(Host { name: name.to_owned(), ranks }) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_with_numbers_of_ranks() {
        let host = |entry: &str| parse_host(entry).map(|host| (host.name, host.ranks));
        assert_eq!(host("a"), Ok(("a".to_owned(), 1)));
        assert_eq!(host("node-3.cluster:4"), Ok(("node-3.cluster".to_owned(), 4)));
        assert_eq!(host("[fd00::2]:3"), Ok(("fd00::2".to_owned(), 3)));
        assert_eq!(host("[fd00::2]"), Ok(("fd00::2".to_owned(), 1)));
        for wrong in ["", ":2", "a:0", "a:b", "a:1:2", "fd00::2", "[fd00::2", "[fd00::2]3", "a,b", "-x:1"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }
}
