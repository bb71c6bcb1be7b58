//! Detects incompatible devices among the ranks of a run.

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

/// Host and device of a rank. The ranks exchange this value.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankDevice {
    host: String,
    /// `None`: the CPU.
    gpu: Option<GpuId>,
    /// `NCCL_HOSTID`, if set.
    nccl_host_id: Option<String>,
}

/// Identity of a GPU or MIG instance on its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct GpuId {
    pci_bus_id: String,
    /// Differs between the MIG instances of a GPU.
    uuid: String,
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
    /// Describes this rank.
    pub fn local(gpu: Option<&Gpu>) -> Self {
        let host = lambert_store::host::name();
        let nccl_host_id = std::env::var("NCCL_HOSTID").ok();
        let id = |gpu: &Gpu| GpuId { pci_bus_id: gpu.properties.pci_bus_id.clone(), uuid: gpu.properties.uuid.clone() };
        Self { host, gpu: gpu.map(id), nccl_host_id }
    }
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
mod tests {
    use super::*;

    fn devices(hosts_and_gpus: &[(&str, &str)]) -> Vec<RankDevice> {
        let device = |(host, gpu): &(&str, &str)| RankDevice {
            host: (*host).to_owned(),
            gpu: (!gpu.is_empty()).then(|| GpuId { pci_bus_id: (*gpu).to_owned(), uuid: format!("uuid of {gpu}") }),
            nccl_host_id: None,
        };
        hosts_and_gpus.iter().map(device).collect()
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
