//! CPUs of a rank in a Slurm job.

use super::{DeviceKind, RunConfig};

/// Default number of CPUs of a rank on a GPU: for its main thread, the backward pass, the loader, MPI and NCCL.
const GPU_RANK_CPUS: usize = 8;

impl RunConfig {
    /// Returns the CPUs of each rank in a Slurm job whose nodes have `gpus_per_node` GPUs. `available` returns the CPUs
    /// that a node has for each of its ranks, if known.
    pub fn cpus_per_rank(&self, gpus_per_node: usize, available: impl FnOnce() -> Option<usize>) -> usize {
        let threads = self.device.threads;
        let uses_gpus = match self.device.kind {
            DeviceKind::Cpu => false,
            DeviceKind::Cuda => true,
            DeviceKind::Auto => gpus_per_node > 0,
        };
        match self.slurm.cpus_per_task {
            Some(cpus) => cpus,
            None if uses_gpus => available().map_or(GPU_RANK_CPUS, |cpus| cpus.min(GPU_RANK_CPUS)).max(threads),
            None => threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(change: impl FnOnce(&mut RunConfig), gpus_per_node: usize, available: Option<usize>) -> usize {
        let mut config = RunConfig::default();
        change(&mut config);
        config.cpus_per_rank(gpus_per_node, || available)
    }

    #[test]
    fn ranks_on_gpus_get_more_cpus_than_threads() {
        assert_eq!(cpus(|_| {}, 0, Some(64)), 1, "ranks on CPUs use their threads only");
        assert_eq!(cpus(|config| config.device.threads = 16, 0, Some(4)), 16);
        assert_eq!(cpus(|_| {}, 4, None), 8);
        assert_eq!(cpus(|_| {}, 4, Some(64)), 8);
        assert_eq!(cpus(|_| {}, 4, Some(6)), 6, "Slurm would refuse more CPUs than the nodes have");
        assert_eq!(cpus(|_| {}, 4, Some(0)), 1);
        assert_eq!(cpus(|config| config.device.threads = 12, 4, Some(6)), 12, "chosen by the user");
        assert_eq!(cpus(|config| config.device.kind = DeviceKind::Cuda, 0, None), 8);
        assert_eq!(cpus(|config| config.device.kind = DeviceKind::Cpu, 4, None), 1);
        assert_eq!(cpus(|config| config.slurm.cpus_per_task = Some(3), 4, Some(2)), 3);
    }
}
