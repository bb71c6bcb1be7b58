//! Number of concurrent runs and their GPU assignment.

use lambert_config::RunConfig;
use lambert_config::run::DeviceKind;
use lambert_plan::memory;

use crate::host;

/// Resources for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSlot {
    /// GPUs of the run, as a value of [`host::GPU_VARIABLE`]. `None`: the run inherits the variable.
    pub gpus: Option<String>,
}

/// Resources that a run needs on this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceNeed {
    /// Number of ranks.
    pub ranks: usize,
    /// CPUs of all ranks.
    pub processors: usize,
    /// Main memory of all ranks, bytes.
    pub bytes: u64,
    /// True if the run uses GPUs where available.
    pub gpus: bool,
    /// True if ranks run on other hosts or in Slurm steps, where Slurm assigns CPUs and GPUs.
    pub elsewhere: bool,
}

impl ResourceNeed {
    /// Returns the needs of a run whose ranks take `bytes` of main memory in total. `here` is true if all ranks are
    /// processes on this host.
    pub fn of(config: &RunConfig, here: bool, bytes: u64) -> Self {
        let ranks = config.cluster.ranks.max(1);
        Self {
            ranks,
            processors: ranks * config.device.threads.max(1),
            bytes,
            gpus: config.device.kind != DeviceKind::Cpu,
            elsewhere: !here,
        }
    }

    /// Returns the maximum of the two needs for each resource.
    pub fn max(self, other: Self) -> Self {
        Self {
            ranks: self.ranks.max(other.ranks),
            processors: self.processors.max(other.processors),
            bytes: self.bytes.max(other.bytes),
            gpus: self.gpus || other.gpus,
            elsewhere: self.elsewhere || other.elsewhere,
        }
    }
}

/// Resources of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostResources {
    /// CPUs.
    pub processors: usize,
    /// Main memory, bytes, if known.
    pub bytes: Option<u64>,
    /// GPUs, as listed in [`host::GPU_VARIABLE`].
    pub gpus: Vec<String>,
}

impl HostResources {
    /// Returns the resources of this host.
    pub fn here() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { processors, bytes: memory::host_memory(), gpus: host::gpus() }
    }

    /// Returns `wanted` slots. If `wanted` is `None`, returns as many slots as fit on this host, but at least one. Each
    /// slot is for a run that needs at most `need`. For runs with ranks elsewhere, only one slot fits on this host. A
    /// run with more ranks than GPUs gets all GPUs.
    pub fn slots(&self, need: &ResourceNeed, wanted: Option<usize>) -> Vec<RunSlot> {
        let by_memory =
            self.bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes / need.bytes.max(1)).unwrap_or(usize::MAX));
        let on_gpus = need.gpus && !self.gpus.is_empty();
        let by_ranks = match (need.elsewhere, on_gpus) {
            (true, _) => 1,
            (false, true) => self.gpus.len() / need.ranks,
            (false, false) => self.processors / need.processors,
        };
        let count = wanted.unwrap_or(by_ranks.min(by_memory)).max(1);
        if need.elsewhere || !on_gpus || by_ranks == 0 {
            return vec![RunSlot { gpus: None }; count];
        }
        let groups = self.gpus.chunks_exact(need.ranks).map(|gpus| RunSlot { gpus: Some(gpus.join(",")) });
        groups.cycle().take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn need(ranks: usize, threads: usize, device: DeviceKind) -> ResourceNeed {
        let mut config = RunConfig::default();
        (config.cluster.ranks, config.device.threads, config.device.kind) = (ranks, threads, device);
        ResourceNeed::of(&config, true, GIB)
    }

    fn slots(gpus: usize, need: ResourceNeed, wanted: Option<usize>) -> Vec<String> {
        let gpus = (0..gpus).map(|gpu| gpu.to_string()).collect();
        let machine = HostResources { processors: 8, bytes: Some(8 * GIB), gpus };
        machine.slots(&need, wanted).into_iter().map(|slot| slot.gpus.unwrap_or_default()).collect()
    }

    #[test]
    fn runs_share_processors() {
        assert_eq!(slots(0, need(1, 2, DeviceKind::Auto), None).len(), 4);
        assert_eq!(slots(4, need(2, 3, DeviceKind::Cpu), None), [""]);
        assert_eq!(slots(0, need(16, 1, DeviceKind::Auto), None).len(), 1);
        assert_eq!(slots(0, need(1, 8, DeviceKind::Auto), Some(3)).len(), 3);
    }

    #[test]
    fn runs_share_memory() {
        let large = ResourceNeed { bytes: 3 * GIB, ..need(1, 1, DeviceKind::Cpu) };
        assert_eq!(slots(0, large, None).len(), 2);
        assert_eq!(slots(4, ResourceNeed { gpus: true, ..large }, None), ["0", "1"]);
        assert_eq!(slots(0, ResourceNeed { bytes: 9 * GIB, ..large }, None).len(), 1);
        assert_eq!(slots(0, large, Some(4)).len(), 4, "who asks for it has it");
    }

    #[test]
    fn runs_of_several_sizes_have_room_for_the_largest_of_each() {
        let need = need(2, 1, DeviceKind::Cpu).max(ResourceNeed { bytes: 5 * GIB, ..need(1, 3, DeviceKind::Auto) });
        assert_eq!(need, ResourceNeed { ranks: 2, processors: 3, bytes: 5 * GIB, gpus: true, elsewhere: false });
    }

    #[test]
    fn each_run_has_its_own_gpus() {
        assert_eq!(slots(4, need(2, 1, DeviceKind::Auto), None), ["0,1", "2,3"]);
        assert_eq!(slots(4, need(1, 1, DeviceKind::Cuda), Some(2)), ["0", "1"]);
        assert_eq!(slots(3, need(2, 1, DeviceKind::Auto), None), ["0,1"]);
        assert_eq!(slots(2, need(1, 1, DeviceKind::Auto), Some(3)), ["0", "1", "0"]);
        assert_eq!(slots(2, need(4, 1, DeviceKind::Auto), None), [""], "more ranks than gpus");
        let elsewhere = ResourceNeed { elsewhere: true, ..need(2, 1, DeviceKind::Cuda) };
        assert_eq!(slots(4, elsewhere, None), [""]);
        assert!(ResourceNeed::of(&RunConfig::default(), false, 0).elsewhere);
    }
}
