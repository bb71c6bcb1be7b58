//! Detects incompatible devices among the ranks of a run, and GPUs that a host has lost since an earlier attempt.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Gpu;

/// Two ranks whose devices are incompatible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DeviceConflict {
    /// Both ranks use the same GPU.
    #[error(
        "ranks {} and {} share GPU {gpu} on host {host}; set device.share = true to allow this",
        ranks[0],
        ranks[1]
    )]
    SharedGpu {
        ranks: [usize; 2],
        /// PCI bus ID.
        gpu: String,
        host: String,
    },
    /// Both ranks use the same GPU, and the all-reduce uses NCCL, which allows one rank per GPU.
    #[error(
        "ranks {} and {} share GPU {gpu} on host {host}, but NCCL allows one rank per GPU; set cluster.all_reduce.backend = \"mpi\" and \
         device.share = true to share a GPU",
        ranks[0],
        ranks[1]
    )]
    SharedGpuWithNccl {
        ranks: [usize; 2],
        /// PCI bus ID.
        gpu: String,
        host: String,
    },
    /// Two ranks use MIG instances of the same GPU, and the all-reduce uses NCCL, which compares PCI bus IDs.
    #[error(
        "ranks {} and {} use MIG instances of GPU {gpu} on host {host}, but NCCL allows one rank per GPU; set \
         cluster.all_reduce.backend = \"mpi\" to use several instances of a GPU",
        ranks[0],
        ranks[1]
    )]
    MigWithNccl {
        ranks: [usize; 2],
        /// PCI bus ID.
        gpu: String,
        host: String,
    },
    /// One rank uses a GPU and another rank uses the CPU. The CPU rank would delay every step and round differently.
    #[error(
        "rank {} uses a GPU (host {}) and rank {} uses the CPU (host {}); all ranks of a run must use the same kind of device: \
         set device.kind to \"cpu\" or \"cuda\"",
        gpu.0,
        gpu.1,
        cpu.0,
        cpu.1
    )]
    MixedDevices {
        /// First rank that uses a GPU, and its host.
        gpu: (usize, String),
        /// First rank that uses the CPU, and its host.
        cpu: (usize, String),
    },
}

/// GPUs that an earlier attempt used on a host, and that are missing there, or on another host that takes its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGpus {
    pub host: String,
    /// GPUs that the earlier attempt used, and that no rank of the host uses now. Empty if they are unknown.
    missing: Vec<GpuId>,
    /// The earlier attempt.
    attempt: u32,
    /// Number of GPUs that it used on the host.
    used: usize,
    /// Number of GPUs that the ranks of the host find now. `None` if only one rank, which sees none, is known.
    found: Option<usize>,
    /// Host of the earlier attempt, if it is another one.
    #[serde(default)]
    other_host: Option<String>,
}

impl std::error::Error for LostGpus {}

impl std::fmt::Display for LostGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, attempt, used, .. } = self;
        let difference = match &self.other_host {
            Some(other) => format!("has too few GPUs: attempt {attempt} used {used} on host {other}"),
            None => format!("has lost {}: attempt {attempt} used {used} there", names(&self.missing)),
        };
        write!(f, "host {host} {difference}, and ")?;
        match self.found {
            Some(found) => write!(f, "this attempt finds {found}")?,
            None => f.write_str("a rank sees none now")?,
        }
        f.write_str("; check the host with dmesg and nvidia-smi, or use fewer ranks on it")
    }
}

/// Names GPUs in a message.
fn names(gpus: &[GpuId]) -> String {
    if gpus.is_empty() {
        return "a GPU".to_owned();
    }
    let names: Vec<String> = gpus.iter().map(|gpu| format!("{} (UUID {})", gpu.pci_bus_id, gpu.uuid)).collect();
    format!("{} {}", if gpus.len() == 1 { "GPU" } else { "GPUs" }, names.join(", "))
}

impl LostGpus {
    /// Compares the ranks of a host with those of attempt `attempt` on the same host. Returns `None` if the host has as
    /// many GPUs as before, or if another value of `CUDA_VISIBLE_DEVICES` explains the difference.
    pub fn find(now: &[&RankDevice], attempt: u32, then: &[&RankDevice]) -> Option<Self> {
        let mut values = BTreeMap::<&Option<String>, usize>::new();
        then.iter().for_each(|device| *values.entry(&device.visible_devices).or_default() += 1);
        for device in now {
            let left = values.get_mut(&device.visible_devices)?;
            *left = left.checked_sub(1)?;
        }
        // With a value of its own, a rank sees only its own GPU.
        let is_visible = |device: &&RankDevice| now.iter().any(|own| own.visible_devices == device.visible_devices);
        let used: BTreeSet<&GpuId> = then.iter().copied().filter(is_visible).filter_map(RankDevice::gpu).collect();
        let found: BTreeSet<&GpuId> = now.iter().filter_map(|device| device.gpu()).collect();
        if used.len() <= found.len() {
            return None;
        }
        let missing = used.difference(&found).map(|gpu| (*gpu).clone()).collect();
        let (host, used, found) = (now.first()?.host.clone(), used.len(), Some(found.len()));
        Some(Self { host, missing, attempt, used, found, other_host: None })
    }

    /// Compares the ranks of a host with those of attempt `attempt` on another host, which `then` describes.
    pub fn find_elsewhere(now: &[&RankDevice], attempt: u32, then: &[&RankDevice]) -> Option<Self> {
        let other_host = Some(then.first()?.host.clone());
        Some(Self { missing: Vec::new(), other_host, ..Self::find(now, attempt, then)? })
    }

    /// Loss that a rank without a GPU has found alone. Which GPUs the other ranks see is unknown. If the launcher or the user
    /// gives each rank its own GPU, CUDA has numbered the GPUs again, so that the missing one is unknown, too.
    pub fn seen_by_one_rank(self) -> Self {
        Self { missing: Vec::new(), found: None, ..self }
    }
}

/// Host and device of a rank. The ranks exchange this value, and each attempt records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankDevice {
    pub rank: usize,
    pub host: String,
    /// `None`: the CPU.
    gpu: Option<GpuId>,
    /// `CUDA_VISIBLE_DEVICES`, if set.
    #[serde(rename = "cuda_visible_devices")]
    visible_devices: Option<String>,
    /// `NCCL_HOSTID`, if set.
    nccl_host_id: Option<String>,
}

/// Identity of a GPU or MIG instance on its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuId {
    pub pci_bus_id: String,
    /// Differs between the MIG instances of a GPU.
    pub uuid: String,
}

impl From<&Gpu> for GpuId {
    fn from(gpu: &Gpu) -> Self {
        Self { pci_bus_id: gpu.properties.pci_bus_id.clone(), uuid: gpu.properties.uuid.clone() }
    }
}

/// Policy on ranks that share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSharing {
    /// Ranks must not share a GPU.
    Forbidden,
    /// Ranks may share a GPU.
    Allowed,
    /// NCCL is in use, which allows one rank per GPU of a host.
    ForbiddenByNccl,
    /// NCCL is in use, and ranks may share a GPU if their `NCCL_HOSTID` values differ.
    AllowedAcrossNcclHosts,
}

impl RankDevice {
    /// Describes this process as rank `rank`.
    pub fn local(rank: usize, gpu: Option<GpuId>) -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let (visible_devices, nccl_host_id) = (variable("CUDA_VISIBLE_DEVICES"), variable("NCCL_HOSTID"));
        Self { rank, host: lambert_store::host::name(), gpu, visible_devices, nccl_host_id }
    }

    /// GPU of the rank; `None` on a CPU.
    pub fn gpu(&self) -> Option<&GpuId> {
        self.gpu.as_ref()
    }
}

/// Returns the ranks of each host.
pub fn by_host(all: &[RankDevice]) -> Vec<Vec<&RankDevice>> {
    let mut hosts = BTreeMap::<&str, Vec<&RankDevice>>::new();
    all.iter().for_each(|device| hosts.entry(&device.host).or_default().push(device));
    hosts.into_values().collect()
}

/// Returns the ranks of each host that would share a GPU, or have none.
pub fn hosts_with_too_few_gpus(all: &[RankDevice]) -> Vec<Vec<&RankDevice>> {
    let count = |ranks: &[&RankDevice]| ranks.iter().filter_map(|device| device.gpu()).collect::<BTreeSet<_>>().len();
    by_host(all).into_iter().filter(|ranks| count(ranks) < ranks.len()).collect()
}

/// Returns the first conflict between two ranks, if any.
pub fn find_conflict(all: &[RankDevice], sharing: DeviceSharing) -> Option<DeviceConflict> {
    let first = |has_gpu: bool| {
        let rank = all.iter().position(|device| device.gpu.is_some() == has_gpu)?;
        Some((rank, all[rank].host.clone()))
    };
    if let (Some(gpu), Some(cpu)) = (first(true), first(false)) {
        return Some(DeviceConflict::MixedDevices { gpu, cpu });
    }
    let uses_nccl = matches!(sharing, DeviceSharing::ForbiddenByNccl | DeviceSharing::AllowedAcrossNcclHosts);
    let same = |ranks: &[usize; 2]| {
        let [first, second] = ranks.map(|rank| &all[rank]);
        let is_on_other_nccl_host =
            sharing == DeviceSharing::AllowedAcrossNcclHosts && first.nccl_host_id != second.nccl_host_id;
        let (Some(one), Some(other)) = (&first.gpu, &second.gpu) else { return false };
        first.host == second.host
            && (one.uuid == other.uuid || uses_nccl && one.pci_bus_id == other.pci_bus_id)
            && sharing != DeviceSharing::Allowed
            && !is_on_other_nccl_host
    };
    let mut pairs = (0..all.len()).flat_map(|second| (0..second).map(move |first| [first, second]));
    let ranks = pairs.find(same)?;
    let [first, second] = ranks.map(|rank| all[rank].gpu.as_ref());
    let (gpu, host) = (first?.pci_bus_id.clone(), all[ranks[0]].host.clone());
    Some(match uses_nccl {
        _ if first != second => DeviceConflict::MigWithNccl { ranks, gpu, host },
        true => DeviceConflict::SharedGpuWithNccl { ranks, gpu, host },
        false => DeviceConflict::SharedGpu { ranks, gpu, host },
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Ranks on hosts and GPUs. An empty GPU is the CPU.
    pub fn devices(hosts_and_gpus: &[(&str, &str)]) -> Vec<RankDevice> {
        let device = |(rank, (host, gpu)): (usize, &(&str, &str))| RankDevice {
            rank,
            host: (*host).to_owned(),
            gpu: (!gpu.is_empty()).then(|| GpuId { pci_bus_id: (*gpu).to_owned(), uuid: format!("uuid of {gpu}") }),
            visible_devices: None,
            nccl_host_id: None,
        };
        hosts_and_gpus.iter().enumerate().map(device).collect()
    }

    /// Sets `CUDA_VISIBLE_DEVICES` of ranks.
    pub fn with_visible_devices(mut devices: Vec<RankDevice>, values: &[&str]) -> Vec<RankDevice> {
        let pairs = devices.iter_mut().zip(values);
        pairs.for_each(|(device, value)| device.visible_devices = Some((*value).to_owned()));
        devices
    }

    fn lost(now: &[RankDevice], then: &[RankDevice]) -> Option<LostGpus> {
        LostGpus::find(&now.iter().collect::<Vec<_>>(), 4, &then.iter().collect::<Vec<_>>())
    }

    #[test]
    fn lost_gpus_are_named() {
        let then = devices(&[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]);
        let one = lost(&devices(&[("a", "1"), ("a", "2"), ("a", "4"), ("a", "1")]), &then).unwrap();
        let message = "host a has lost GPU 3 (UUID uuid of 3): attempt 4 used 4 there, and this attempt finds 3; ";
        assert!(one.to_string().starts_with(message), "{one}");
        let all = lost(&devices(&[("a", ""), ("a", "")]), &then).unwrap();
        let message =
            "host a has lost GPUs 1 (UUID uuid of 1), 2 (UUID uuid of 2), 3 (UUID uuid of 3), 4 (UUID uuid of 4): ";
        assert!(all.to_string().starts_with(message), "{all}");
        // Another GPU took the place of the lost one.
        assert_eq!(lost(&devices(&[("a", "1"), ("a", "2"), ("a", "3"), ("a", "5")]), &then), None);
        assert_eq!(lost(&devices(&[("a", "1"), ("a", "1")]), &devices(&[("a", "1"), ("a", "1")])), None);
        assert_eq!(lost(&devices(&[("a", ""), ("a", "")]), &devices(&[("a", ""), ("a", "")])), None);
    }

    #[test]
    fn visible_devices_explain_missing_gpus() {
        let four = || devices(&[("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")]);
        let three = || devices(&[("a", "1"), ("a", "2"), ("a", "3"), ("a", "1")]);
        let (all, fewer) = (["0,1,2,3"; 4], ["0,1,2"; 4]);
        let then = with_visible_devices(four(), &all);
        assert!(lost(&with_visible_devices(three(), &all), &then).is_some());
        assert_eq!(lost(&with_visible_devices(three(), &fewer), &then), None);
        assert_eq!(lost(&three(), &then), None, "no longer set");
        assert_eq!(lost(&with_visible_devices(three(), &all), &four()), None, "set since");
        // One GPU per rank: two ranks got the same GPU, or a rank does not see its GPU any more.
        let then = with_visible_devices(four(), &["0", "1", "2", "3"]);
        assert_eq!(lost(&with_visible_devices(three(), &["0", "1", "2", "0"]), &then), None);
        let gone = lost(&with_visible_devices(devices(&[("a", "")]), &["2"]), &then).unwrap();
        assert!(
            gone.to_string().starts_with("host a has lost GPU 3 (UUID uuid of 3): attempt 4 used 1 there"),
            "{gone}"
        );
    }

    #[test]
    fn hosts_with_a_gpu_per_rank_have_enough() {
        let all = devices(&[("a", "1"), ("b", "1"), ("a", "2"), ("b", "1"), ("c", "")]);
        let ranks: Vec<Vec<usize>> =
            hosts_with_too_few_gpus(&all).iter().map(|host| host.iter().map(|device| device.rank).collect()).collect();
        assert_eq!(ranks, [vec![1, 3], vec![4]]);
    }

    #[test]
    fn finds_ranks_that_share_a_gpu() {
        assert_eq!(find_conflict(&devices(&[("a", "1"), ("a", "2"), ("b", "1")]), DeviceSharing::Forbidden), None);
        let shared = devices(&[("a", "1"), ("a", "2"), ("b", "1"), ("a", "2")]);
        let message = find_conflict(&shared, DeviceSharing::Forbidden).unwrap().to_string();
        assert!(message.starts_with("ranks 1 and 3 share GPU 2 on host a"), "{message}");
        assert_eq!(find_conflict(&shared, DeviceSharing::Allowed), None);
        // Under NCCL, sharing is accepted only for different NCCL_HOSTID values.
        for sharing in [DeviceSharing::ForbiddenByNccl, DeviceSharing::AllowedAcrossNcclHosts] {
            let message = find_conflict(&shared, sharing).unwrap().to_string();
            assert!(
                message.starts_with("ranks 1 and 3 share GPU 2 on host a, but NCCL allows one rank per GPU"),
                "{message}"
            );
        }
        let mut other_hosts = shared;
        other_hosts[3].nccl_host_id = Some("other".to_owned());
        assert_eq!(find_conflict(&other_hosts, DeviceSharing::AllowedAcrossNcclHosts), None);
        assert!(find_conflict(&other_hosts, DeviceSharing::ForbiddenByNccl).is_some());
    }

    #[test]
    fn mig_instances_are_devices_of_their_own_except_for_nccl() {
        let mut instances = devices(&[("a", "1"), ("a", "1")]);
        instances[1].gpu.as_mut().unwrap().uuid = "another".to_owned();
        assert_eq!(find_conflict(&instances, DeviceSharing::Forbidden), None);
        let message = find_conflict(&instances, DeviceSharing::ForbiddenByNccl).unwrap().to_string();
        assert!(message.starts_with("ranks 0 and 1 use MIG instances of GPU 1 on host a, but NCCL"), "{message}");
    }

    #[test]
    fn rejects_a_mix_of_gpus_and_cpus() {
        let message = find_conflict(&devices(&[("a", "1"), ("a", "2"), ("b", ""), ("b", "")]), DeviceSharing::Allowed)
            .unwrap()
            .to_string();
        assert!(message.starts_with("rank 0 uses a GPU (host a) and rank 2 uses the CPU (host b)"), "{message}");
        assert_eq!(
            find_conflict(&devices(&[("a", ""), ("a", ""), ("b", "")]), DeviceSharing::Forbidden),
            None,
            "ranks may share a host CPU"
        );
    }
}
