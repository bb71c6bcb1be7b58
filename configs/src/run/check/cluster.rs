//! Validation of the sections `device` and `cluster`.

use std::fmt::Display;

use super::{minutes, not_negative, positive};
use crate::duration;
use crate::load::ConfigIssue;
use crate::run::{
    AllReduce, Attention, Backend, CANONICAL_SHARDS, Cluster, DeviceKind, LauncherKind, Limits, ReduceDtype,
    RestartLimits, RunConfig,
};

impl RunConfig {
    pub(super) fn check_machines(&self, issues: &mut Vec<ConfigIssue>) {
        positive("device.threads", self.device.threads as f64, issues);
        self.cluster.check(issues);
        self.check_nccl(issues);
    }

    /// Rejects settings whose results depend on the number of ranks, or that canonical mode does not support.
    pub(super) fn check_canonical(&self, issues: &mut Vec<ConfigIssue>) {
        if !self.cluster.all_reduce.canonical {
            return;
        }
        let mut wrong = |key: &str, value: &dyn Display, message: &str| {
            let message = format!("{message} (cluster.all_reduce.canonical is true)");
            issues.push(ConfigIssue::of_value(key, value, message));
        };
        if self.cluster.ranks > CANONICAL_SHARDS {
            let message = format!("must be at most {CANONICAL_SHARDS}, the number of shards of a global batch");
            wrong("cluster.ranks", &self.cluster.ranks, &message);
        }
        if self.device.kind == DeviceKind::Cuda {
            wrong("device.kind", &"\"cuda\"", "results of GPUs differ between numbers of ranks");
        }
        if self.cluster.all_reduce.dtype == ReduceDtype::Bf16 {
            wrong("cluster.all_reduce.dtype", &"\"bf16\"", "gradients are summed exactly");
        }
        if self.cluster.all_reduce.overlap == Some(true) {
            wrong("cluster.all_reduce.overlap", &true, "gradients are summed after the backward pass");
        }
        if self.model.attention == Attention::Fused && self.model.drops_attention() {
            wrong("model.attention", &"\"fused\"", "its dropout depends on micro-batches; use \"keyed\"");
        }
    }

    /// Rejects settings that are not compatible with NCCL, which needs one GPU per rank, and MPI for bootstrapping.
    fn check_nccl(&self, issues: &mut Vec<ConfigIssue>) {
        let all_reduce = &self.cluster.all_reduce;
        let refused = [
            (self.device.kind == DeviceKind::Cpu, "requires GPUs; device.kind is cpu"),
            (all_reduce.canonical, "requires GPUs; cluster.all_reduce.canonical computes on CPUs"),
            (
                self.cluster.launcher == LauncherKind::Direct,
                "requires ranks started by mpirun or srun; cluster.launcher is direct",
            ),
        ];
        let refused = refused.into_iter().filter(|(is_refused, _)| all_reduce.backend == Backend::Nccl && *is_refused);
        issues.extend(refused.map(|(_, why)| ConfigIssue::new("cluster.all_reduce.backend", format!("nccl {why}"))));
    }
}

/// Arguments of mpirun for process placement, which `cluster.hosts` controls.
const PLACEMENT_FLAGS: [&str; 8] =
    ["-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile"];

impl Cluster {
    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        positive("cluster.ranks", self.ranks as f64, issues);
        self.all_reduce.check(self.ranks, issues);
        self.restart.check(issues);
        positive("cluster.dataset_cache.gigabytes", self.dataset_cache.gigabytes, issues);
        if !matches!(self.log_folder.as_str(), "" | Cluster::NO_LOGS) && !self.log_folder.starts_with('/') {
            issues.push(ConfigIssue::new(
                "cluster.log_folder",
                "must be an absolute path, the same on all hosts, or none",
            ));
        }
        self.limits.check(issues);
        self.check_hosts(issues);
        if self.launcher == LauncherKind::Direct && self.ranks > 1 {
            issues.push(ConfigIssue::new(
                "cluster.launcher",
                format!("direct supports one rank; cluster.ranks is {}", self.ranks),
            ));
        }
        if let Some(flag) = self.mpirun_arguments.iter().find(|argument| PLACEMENT_FLAGS.contains(&argument.as_str())) {
            let message = format!("{flag}: name hosts in cluster.hosts, for example [\"a:4\", \"b:4\"]");
            issues.push(ConfigIssue::new("cluster.mpirun_arguments", message));
        }
        if self.control.ports.is_some_and(|[first, last]| first == 0 || first > last) {
            issues.push(ConfigIssue::new("cluster.control.ports", "must be [first, last], from 1 to 65535"));
        }
    }

    fn check_hosts(&self, issues: &mut Vec<ConfigIssue>) {
        match self.host_list() {
            Err(message) => issues.push(ConfigIssue::new("cluster.hosts", message)),
            Ok(hosts) if hosts.is_empty() => {}
            Ok(hosts) => {
                let room = hosts.iter().fold(0_usize, |sum, host| sum.saturating_add(host.ranks));
                if room < self.ranks {
                    let message = format!(
                        "have slots for {room} ranks, cluster.ranks is {}; list more hosts, or more ranks of a host (NAME:RANKS)",
                        self.ranks
                    );
                    issues.push(ConfigIssue::new("cluster.hosts", message));
                }
                if self.launcher == LauncherKind::Direct {
                    issues.push(ConfigIssue::new("cluster.launcher", "direct starts no ranks on other hosts"));
                }
                if self.launcher == LauncherKind::Srun {
                    issues.push(ConfigIssue::new(
                        "cluster.hosts",
                        "srun uses the nodes of the Slurm job; remove cluster.hosts",
                    ));
                }
            }
        }
    }
}

impl AllReduce {
    fn check(&self, ranks: usize, issues: &mut Vec<ConfigIssue>) {
        positive("cluster.all_reduce.bucket_mb", self.bucket_mb.unwrap_or(1.0), issues);
        if self.backend == Backend::Local && ranks > 1 {
            issues.push(ConfigIssue::new(
                "cluster.all_reduce.backend",
                format!("local supports one rank; cluster.ranks is {ranks}"),
            ));
        }
    }
}

impl RestartLimits {
    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        positive("cluster.restart.window_minutes", self.window_minutes, issues);
        duration::check("cluster.restart.window_minutes", self.window_minutes, 60.0, issues);
        minutes("cluster.restart.start_timeout_minutes", self.start_timeout_minutes, issues);
    }
}

impl Limits {
    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        let values = [
            ("silence_seconds", self.silence_seconds),
            ("stall_seconds", self.stall_seconds),
            ("join_seconds", self.join_seconds),
            ("load_seconds", self.load_seconds),
            ("step_seconds", self.step_seconds),
            ("first_step_seconds", self.first_step_seconds),
            ("evaluate_seconds", self.evaluate_seconds),
            ("save_seconds", self.save_seconds),
            ("stop_seconds", self.stop_seconds),
            ("coordinator_seconds", self.coordinator_seconds),
        ];
        for (key, value) in values.map(|(key, value)| (format!("cluster.limits.{key}"), value)) {
            not_negative(&key, value, issues);
            duration::check(&key, value, 1.0, issues);
        }
        not_negative("cluster.limits.step_medians", self.step_medians, issues);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_hosts_are_added_without_overflow() {
        let hosts = vec![format!("a:{}", usize::MAX), "b:1".to_owned()];
        let mut issues = Vec::new();
        Cluster { hosts, ranks: 2, ..Cluster::default() }.check_hosts(&mut issues);
        assert_eq!(issues, []);
        Cluster { hosts: vec!["a:1".to_owned()], ranks: 2, ..Cluster::default() }.check_hosts(&mut issues);
        assert_eq!(issues[0].key, "cluster.hosts");
    }
}
