//! Warning about ranks with more threads than this host has processors.

use lambert_config::RunConfig;

use crate::decide::HostPool;
use crate::host;

/// Returns a warning if the ranks on this host have more threads than processors. The ranks inherit the CPU affinity and the
/// cgroup of the coordinator. srun gives each rank its processors, so there is no warning for the nodes of a Slurm job.
pub fn find(config: &RunConfig, host_pool: &HostPool) -> Option<String> {
    let ranks = config.cluster.ranks;
    let (key, ranks) = match host_pool {
        HostPool::Here => ("cluster.ranks", ranks),
        HostPool::Hosts(hosts) => {
            let here = hosts.iter().find(|host| is_here(&host.name))?;
            ("cluster.hosts", here.ranks.min(ranks))
        }
        HostPool::Allocation(_) => return None,
    };
    let processors = std::thread::available_parallelism().ok()?.get();
    warning(key, ranks, config.device.threads, processors)
}

fn is_here(name: &str) -> bool {
    let own = host::name();
    let short = own.split('.').next().unwrap_or_default();
    [own.as_str(), short, "localhost", "127.0.0.1", "::1"].contains(&name)
}

fn warning(key: &str, ranks: usize, threads: usize, processors: usize) -> Option<String> {
    let all = ranks.saturating_mul(threads);
    (all > processors).then(|| {
        format!(
            "{ranks} ranks on this host ({key}) start {threads} threads each (device.threads), {all} in total, but only \
             {processors} processors are available (CPU affinity, cgroup): steps will be slow; reduce device.threads or the \
             number of ranks"
        )
    })
}

#[cfg(test)]
mod tests {
    use lambert_config::run::Host;

    use super::*;

    #[test]
    fn more_threads_than_processors_are_warned_about() {
        assert_eq!(warning("cluster.ranks", 4, 4, 16), None);
        let shown = warning("cluster.ranks", 4, 5, 16).unwrap();
        let start =
            "4 ranks on this host (cluster.ranks) start 5 threads each (device.threads), 20 in total, but only 16 ";
        assert!(shown.starts_with(start), "{shown}");
    }

    #[test]
    fn only_the_ranks_on_this_host_count() {
        let mut config = RunConfig::default();
        (config.cluster.ranks, config.device.threads) = (1000, 1000);
        let on_hosts = |hosts: &[(&str, usize)]| {
            let hosts = hosts.iter().map(|(name, ranks)| Host { name: (*name).to_owned(), ranks: *ranks }).collect();
            find(&config, &HostPool::Hosts(hosts))
        };
        assert_eq!(on_hosts(&[("elsewhere.invalid", 500)]), None);
        let shown = on_hosts(&[("elsewhere.invalid", 500), (&host::name(), 7)]).unwrap();
        assert!(shown.starts_with("7 ranks on this host (cluster.hosts) start 1000 threads each"), "{shown}");
        assert_eq!(find(&config, &HostPool::Allocation(Vec::new())), None);
        assert!(find(&config, &HostPool::Here).unwrap().starts_with("1000 ranks on this host (cluster.ranks)"));
    }
}
