//! Checks of the sections about machines.

use super::{not_negative, positive};
use crate::load::Fault;
use crate::run::{
    AllReduce, Attention, Backend, Cluster, DeviceKind, LEAVES, LauncherKind, Limits, ReduceDtype, Restart, RunConfig,
};

impl RunConfig {
    pub(super) fn check_machines(&self, faults: &mut Vec<Fault>) {
        positive("device.threads", self.device.threads as f64, faults);
        self.cluster.check(faults);
        self.check_nccl(faults);
    }

    /// What cannot be the same in every world.
    pub(super) fn check_canonical(&self, faults: &mut Vec<Fault>) {
        if !self.cluster.all_reduce.canonical {
            return;
        }
        let mut wrong = |key: &str, message: &str| {
            faults.push(Fault::new(key, format!("{message}, and cluster.all_reduce.canonical is true")));
        };
        if self.cluster.ranks > LEAVES {
            wrong(
                "cluster.ranks",
                &format!("is {}, more than the {LEAVES} leaves of a global batch", self.cluster.ranks),
            );
        }
        if self.device.kind == DeviceKind::Cuda {
            wrong("device.kind", "is \"cuda\", whose products are not the same in every world");
        }
        if self.cluster.all_reduce.dtype == ReduceDtype::Bf16 {
            wrong("cluster.all_reduce.dtype", "is \"bf16\", and gradients are summed exactly");
        }
        if self.cluster.all_reduce.overlap == Some(true) {
            wrong("cluster.all_reduce.overlap", "is true, and gradients are summed when all are there");
        }
        if self.model.attention == Attention::Fused && self.model.drops_attention() {
            wrong("model.attention", "is \"fused\", whose dropout follows the micro-batches; \"keyed\" does not");
        }
    }

    /// NCCL sums between cards, each rank having one of its own, and MPI tells the ranks about each other.
    fn check_nccl(&self, faults: &mut Vec<Fault>) {
        let all_reduce = &self.cluster.all_reduce;
        let refused = [
            (self.device.kind == DeviceKind::Cpu, "sums between cards, and device.kind is cpu"),
            (all_reduce.canonical, "sums between cards, and cluster.all_reduce.canonical computes on processors"),
            (
                self.cluster.launcher == LauncherKind::Direct,
                "joins ranks that mpirun or srun starts; cluster.launcher is direct",
            ),
        ];
        let refused = refused.into_iter().filter(|(is_refused, _)| all_reduce.backend == Backend::Nccl && *is_refused);
        faults.extend(refused.map(|(_, why)| Fault::new("cluster.all_reduce.backend", format!("nccl {why}"))));
    }
}

/// Arguments of mpirun that decide where ranks are, which `cluster.hosts` does.
const PLACING: [&str; 8] =
    ["-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile"];

impl Cluster {
    fn check(&self, faults: &mut Vec<Fault>) {
        positive("cluster.ranks", self.ranks as f64, faults);
        self.all_reduce.check(self.ranks, faults);
        self.restart.check(faults);
        positive("cluster.dataset_cache.gigabytes", self.dataset_cache.gigabytes, faults);
        if !matches!(self.log_folder.as_str(), "" | Cluster::NO_LOGS) && !self.log_folder.starts_with('/') {
            faults.push(Fault::new("cluster.log_folder", "must be an absolute path, the same on all hosts, or none"));
        }
        self.limits.check(faults);
        self.check_hosts(faults);
        if self.launcher == LauncherKind::Direct && self.ranks > 1 {
            faults.push(Fault::new("cluster.launcher", format!("direct is one rank; {} are asked for", self.ranks)));
        }
        if let Some(flag) = self.mpirun_arguments.iter().find(|argument| PLACING.contains(&argument.as_str())) {
            let message = format!("{flag}: hosts are named in cluster.hosts, as [\"a:4\", \"b:4\"]");
            faults.push(Fault::new("cluster.mpirun_arguments", message));
        }
        if self.control.ports.is_some_and(|[first, last]| first == 0 || first > last) {
            faults.push(Fault::new("cluster.control.ports", "must be [first, last], from 1 to 65535"));
        }
    }

    fn check_hosts(&self, faults: &mut Vec<Fault>) {
        match self.host_list() {
            Err(message) => faults.push(Fault::new("cluster.hosts", message)),
            Ok(hosts) if hosts.is_empty() => {}
            Ok(hosts) => {
                let room: usize = hosts.iter().map(|host| host.ranks).sum();
                if room < self.ranks {
                    let message = format!("have room for {room} ranks; cluster.ranks is {}", self.ranks);
                    faults.push(Fault::new("cluster.hosts", message));
                }
                if self.launcher == LauncherKind::Direct {
                    faults.push(Fault::new("cluster.launcher", "direct starts no rank on another host"));
                }
                if self.launcher == LauncherKind::Srun {
                    faults.push(Fault::new("cluster.hosts", "srun starts ranks on the nodes that Slurm has given"));
                }
            }
        }
    }
}

impl AllReduce {
    fn check(&self, ranks: usize, faults: &mut Vec<Fault>) {
        positive("cluster.all_reduce.bucket_mb", self.bucket_mb, faults);
        if self.backend == Backend::Local && ranks > 1 {
            faults.push(Fault::new("cluster.all_reduce.backend", format!("local is one rank; {ranks} are asked for")));
        }
    }
}

impl Restart {
    fn check(&self, faults: &mut Vec<Fault>) {
        positive("cluster.restart.window_minutes", self.window_minutes, faults);
        not_negative("cluster.restart.start_timeout_minutes", self.start_timeout_minutes, faults);
    }
}

impl Limits {
    fn check(&self, faults: &mut Vec<Fault>) {
        let values = [
            ("silence_seconds", self.silence_seconds),
            ("stall_seconds", self.stall_seconds),
            ("join_seconds", self.join_seconds),
            ("load_seconds", self.load_seconds),
            ("step_seconds", self.step_seconds),
            ("step_medians", self.step_medians),
            ("first_step_seconds", self.first_step_seconds),
            ("evaluate_seconds", self.evaluate_seconds),
            ("save_seconds", self.save_seconds),
            ("stop_seconds", self.stop_seconds),
            ("coordinator_seconds", self.coordinator_seconds),
        ];
        values.iter().for_each(|(key, value)| not_negative(&format!("cluster.limits.{key}"), *value, faults));
    }
}
