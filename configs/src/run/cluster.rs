//! Hosts of a run, process launch and timeouts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::all_reduce::AllReduce;
use super::restart::RestartLimits;

/// Launcher of the worker processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LauncherKind {
    /// `direct` for one rank, `srun` for several ranks in a Slurm job, otherwise `mpirun`.
    #[default]
    Auto,
    /// The coordinator starts a single worker without MPI.
    Direct,
    /// `mpirun` of Open MPI 4 or 5.
    Mpirun,
    /// Slurm's `srun` with PMIx, on the nodes of the job.
    Srun,
}

/// Hosts, processes and their limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Number of ranks (worker processes). Use one rank per GPU.
    pub ranks: usize,
    /// Hosts, as `NAME`, `NAME:RANKS` or `[IPV6]:RANKS`. Empty: this host, or the nodes of the Slurm job.
    ///
    /// Ranks fill the hosts in order. Surplus hosts are spares that replace failed hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub hosts: Vec<String>,
    /// Launcher of the worker processes.
    pub launcher: LauncherKind,
    /// Additional arguments of `mpirun`.
    pub mpirun_arguments: Vec<String>,
    /// Additional arguments of `srun`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub srun_arguments: Vec<String>,
    /// Additional environment variables to pass to workers on other hosts: `NAME` or `PREFIX_*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub environment: Vec<String>,
    /// Log folder on each host for the output of its workers, as an absolute path. `none`: no files.
    ///
    /// Empty: `/tmp/lambert-logs-UID`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub log_folder: String,
    /// Gradient all-reduce.
    pub all_reduce: AllReduce,
    /// Restart limits.
    pub restart: RestartLimits,
    /// Address that the coordinator listens on.
    pub control: ControlChannel,
    /// Local cache of datasets in object stores.
    pub dataset_cache: DatasetCache,
    /// Timeouts of each phase.
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
            restart: RestartLimits::default(),
            control: ControlChannel::default(),
            dataset_cache: DatasetCache::default(),
            limits: Limits::default(),
        }
    }
}

/// Cache of remote datasets on a host, shared by its ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetCache {
    /// Folder on a local disk of each host. Empty: `/var/tmp/lambert-UID`.
    pub folder: String,
    /// Capacity, GB.
    ///
    /// The least recently used shards are evicted first. A dataset that is larger than the cache is downloaded
    /// repeatedly.
    pub gigabytes: f64,
}

impl Default for DatasetCache {
    fn default() -> Self {
        Self { folder: String::new(), gigabytes: 200.0 }
    }
}

/// Address that the coordinator listens on for workers on other hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlChannel {
    /// Host name or address at which workers reach the coordinator. Absent: detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Network interface to listen on. Absent: all interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// First and last port to listen on. Absent: any port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<[u16; 2]>,
}

/// Timeouts for ranks without progress, in seconds. 0: no timeout. When a timeout expires, the attempt ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum time without a heartbeat from a worker. A worker sends a heartbeat every two seconds.
    ///
    /// The value should be larger than `stall_seconds`, so that waiting ranks can first identify the failed rank.
    pub silence_seconds: f64,
    /// Maximum time without any progress of an all-reduce. After that, unresponsive ranks are given up.
    pub stall_seconds: f64,
    /// Maximum time from process launch until all workers have connected.
    pub join_seconds: f64,
    /// Maximum time for opening datasets and loading the checkpoint.
    pub load_seconds: f64,
    /// Minimum timeout of a step, once the median step time is known.
    pub step_seconds: f64,
    /// Timeout of a step as a multiple of the median step time, if this is longer than `step_seconds`.
    pub step_medians: f64,
    /// Timeout of a step while the median step time is unknown.
    pub first_step_seconds: f64,
    /// Maximum time of an evaluation of one dataset.
    pub evaluate_seconds: f64,
    /// Maximum time to wait for a checkpoint, in addition to `checkpoint.give_up_minutes`.
    pub save_seconds: f64,
    /// Maximum time for workers to exit. Also the maximum time from a stop request until the last checkpoint is saved.
    ///
    /// Set this timeout to more than the duration of a save. Once all work is done and saved, workers have at most 30 s
    /// to exit.
    pub stop_seconds: f64,
    /// Maximum time without a reply from the coordinator. After that, the workers exit with code 69.
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

/// Host with its capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name or address.
    pub name: String,
    /// Maximum number of ranks.
    pub ranks: usize,
}

impl Cluster {
    /// Value of `log_folder` with which no log files are written on the hosts.
    pub const NO_LOGS: &str = "none";

    /// Parses the configured hosts, in order.
    ///
    /// # Errors
    /// The first invalid entry, and the expected format.
    pub fn host_list(&self) -> Result<Vec<Host>, String> {
        self.hosts.iter().map(|entry| parse_host(entry)).collect()
    }
}

fn parse_host(entry: &str) -> Result<Host, String> {
    let wrong = || format!("{entry:?} is not a host: expected NAME, NAME:RANKS or [IPV6]:RANKS");
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
    fn hosts_are_parsed_with_rank_counts() {
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
