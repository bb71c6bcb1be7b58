//! Nodes that the next start of a Slurm job excludes, because they caused failures.

use super::placement::is_node;
use super::{HostPool, RestartHistory, Settings};

/// Maximum number of excluded nodes. More failures than these usually have another cause.
const MAX_NODES: usize = 2;

/// Returns the nodes that a requeued job excludes at time `unix`: the hosts `unreachable`, which the launcher could not
/// reach at last, then those of the most recent failures. Nodes of earlier starts of the job have the names in the history.
pub fn nodes_to_exclude<'a>(
    settings: &Settings,
    history: &'a RestartHistory,
    unreachable: impl Iterator<Item = &'a str>,
    unix: f64,
) -> Vec<String> {
    let Some(job) = settings.job.as_ref().filter(|job| job.exclude_seconds > 0.0) else { return Vec::new() };
    let failed = history.recently_failed_hosts(unix - job.exclude_seconds);
    let mut nodes: Vec<String> = Vec::new();
    for host in unreachable.chain(failed) {
        let node = node_of(settings, host);
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes.truncate(MAX_NODES);
    nodes
}

/// Name of a host in Slurm.
fn node_of(settings: &Settings, host: &str) -> String {
    let own = settings.job.iter().filter_map(|job| job.node.as_ref());
    let pool = match &settings.host_pool {
        HostPool::Allocation(nodes) => &nodes[..],
        HostPool::Here | HostPool::Hosts(_) => &[],
    };
    let mut known = pool.iter().map(|node| &node.name).chain(own);
    known.find(|node| is_node(host, node)).map_or_else(|| host.to_owned(), Clone::clone)
}
