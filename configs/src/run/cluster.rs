//! The machines of a run, how ranks are started on them, and how long things may take there.

use serde::{Deserialize, Serialize};

/// How ranks exchange gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// NCCL between several ranks on GPUs, MPI between several on CPUs, nothing for one rank.
    #[default]
    Auto,
    /// One rank in one process.
    Local,
    /// MPI all-reduce; gradients of a GPU go through pinned main memory.
    Mpi,
    /// NCCL all-reduce between GPUs, one a rank; MPI for everything else.
    Nccl,
}

/// Where tensors live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// A GPU where there is a driver with one, which then has to be usable; else main memory.
    #[default]
    Auto,
    /// Main memory.
    Cpu,
    /// A GPU.
    Cuda,
}

impl Device {
    /// The names that a configuration and a command line have for them.
    pub const NAMES: [&str; 3] = ["auto", "cpu", "cuda"];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|other| *other == name)?;
        Some([Self::Auto, Self::Cpu, Self::Cuda][place])
    }
}

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
    /// How ranks exchange gradients.
    pub backend: Backend,
    /// Where tensors live.
    pub device: Device,
    /// The folder of the CUDA half of libtorch on each host; empty: what `LAMBERT_LIBTORCH` names, lib/ beside the program, or
    /// the installed Python package torch, or what cluster/setup.sh --cuda has fetched.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub libtorch: String,
    /// Whether ranks of a host may have one card together; with `backend = "mpi"`, because NCCL takes one rank a card.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share_device: bool,
    /// Whether a GPU adds up in one order, so that a run that was interrupted ends with the bits of one that was not; slower.
    /// Main memory always does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// CPU threads of a rank.
    pub threads: usize,
    /// Gradients are summed over the ranks in parts of so many MB, each as soon as it is final.
    pub bucket_mb: f64,
    /// The format that they travel in; MPI adds them up in f32, NCCL in this format.
    pub wire: Wire,
    /// Whether every world ends with the same bits, on processors of one type with the same `threads`: the global batch is cut into
    /// twelve leaves, whatever the world, and their gradients are summed exactly. Slower, with 16 bytes a parameter more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub canonical: bool,
    /// Whether they are sent while the rest of the backward pass runs, or at its end. Absent: while it runs, where NCCL sums, where
    /// ranks are on several hosts, or where their host has more processors than they have threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<bool>,
    /// How many failures within `restart_window_minutes`, and attempts in a row without a new checkpoint, are followed by a
    /// restart; one more gives the run up.
    pub restarts: usize,
    /// Failures that are longer ago no longer count, unless no checkpoint has come since, minutes.
    pub restart_window_minutes: f64,
    /// How long starts that no rank reports from are tried again, minutes.
    pub patience_minutes: f64,
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
            backend: Backend::Auto,
            device: Device::Auto,
            libtorch: String::new(),
            share_device: false,
            deterministic: false,
            threads: 1,
            bucket_mb: 25.0,
            wire: Wire::Fp32,
            canonical: false,
            overlap: None,
            restarts: 5,
            restart_window_minutes: 60.0,
            patience_minutes: 60.0,
            mpirun_arguments: Vec::new(),
            srun_arguments: Vec::new(),
            environment: Vec::new(),
            log_folder: String::new(),
            control: ControlChannel::default(),
            dataset_cache: DatasetCache::default(),
            limits: Limits::default(),
        }
    }
}

/// Parts of a global batch where every world computes alike: those of 1, 2, 3, 4, 6 and 12 ranks are equally many.
pub const LEAVES: usize = 12;

/// The format in which gradients travel between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// As they are.
    #[default]
    Fp32,
    /// Rounded to bf16: half the bytes.
    Bf16,
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

    /// Parts that a global batch is cut into for a world of so many ranks.
    pub fn parts(&self, world: usize) -> usize {
        if self.canonical { LEAVES } else { world }
    }

    /// Gradients in a part of [`Cluster::bucket_mb`]; one at least.
    pub fn bucket_elements(&self) -> usize {
        (self.bucket_mb * 1e6 / size_of::<f32>() as f64).max(1.0) as usize
    }

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
