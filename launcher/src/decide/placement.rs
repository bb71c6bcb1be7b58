//! Placement of ranks on hosts, decided for each attempt.

use std::collections::BTreeSet;

use lambert_config::run::Host;

/// One start of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Attempt number, equal to the number of its lease.
    pub number: u32,
    /// Number of ranks.
    pub world: usize,
    /// Hosts of the ranks.
    pub placement: Placement,
}

/// Hosts of the ranks of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Host of the coordinator.
    Here,
    /// Listed hosts, filled in order.
    Hosts(Vec<Host>),
    /// Nodes of the Slurm job. The launcher chooses the node of each rank. Some nodes may be excluded.
    Allocation(Option<ExcludedNodes>),
}

/// Nodes of a Slurm job excluded from an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedNodes {
    /// Names of the excluded nodes.
    pub nodes: Vec<String>,
    /// Number of nodes that the ranks use.
    pub used: usize,
}

impl Placement {
    /// Host name of each rank, known because launchers fill listed hosts in order. Empty if no hosts are listed.
    pub fn rank_hosts(&self) -> Vec<String> {
        let Self::Hosts(hosts) = self else { return Vec::new() };
        hosts.iter().flat_map(|host| std::iter::repeat_n(host.name.clone(), host.ranks)).collect()
    }
}

/// Hosts available to a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostPool {
    /// Only the host of the coordinator.
    #[default]
    Here,
    /// Listed hosts.
    Hosts(Vec<Host>),
    /// Nodes of the Slurm job with their task counts. Empty if unknown.
    Allocation(Vec<Host>),
}

/// Nodes of a Slurm job on which an attempt runs, if the launcher chooses the node of each rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptNodes {
    /// Names of the nodes. Empty if unknown.
    pub names: Vec<String>,
    /// True if each node has at least one rank.
    pub all_have_ranks: bool,
}

impl AttemptNodes {
    /// Name of the node that is `host`, the host of a rank. In a job on one node, all ranks are on this node.
    pub fn find(&self, host: &str) -> Option<&String> {
        match &self.names[..] {
            [node] => Some(node),
            names => names.iter().find(|node| is_node(host, node)),
        }
    }
}

impl HostPool {
    /// Returns the nodes of the Slurm job for an attempt with `world` ranks and this placement.
    pub fn nodes(&self, placement: &Placement, world: usize) -> AttemptNodes {
        let (Self::Allocation(nodes), Placement::Allocation(excluded)) = (self, placement) else {
            return AttemptNodes::default();
        };
        let excluded = excluded.as_ref().map_or(&[][..], |excluded| &excluded.nodes[..]);
        let names = nodes.iter().map(|node| node.name.clone()).filter(|name| !excluded.contains(name));
        let names: Vec<String> = names.collect();
        AttemptNodes { all_have_ranks: names.len() <= world, names }
    }
}

/// Places `world` ranks on the available hosts in order. Hosts in `avoid` come last, so they are unused if the other
/// hosts have enough slots.
pub fn place(host_pool: &HostPool, world: usize, avoid: &BTreeSet<&str>) -> Placement {
    let hosts = match host_pool {
        HostPool::Here => return Placement::Here,
        HostPool::Allocation(nodes) => return Placement::Allocation(leave_out(nodes, world, avoid)),
        HostPool::Hosts(hosts) => hosts,
    };
    let (bad, good): (Vec<&Host>, Vec<&Host>) = hosts.iter().partition(|host| avoid.contains(host.name.as_str()));
    let (mut left, mut placed) = (world, Vec::new());
    for host in good.into_iter().chain(bad) {
        let ranks = host.ranks.min(left);
        if ranks > 0 {
            placed.push(Host { name: host.name.clone(), ranks });
        }
        left -= ranks;
    }
    Placement::Hosts(placed)
}

/// Returns the nodes in `avoid` that can be excluded, in node order. The other nodes keep at least `world` slots.
fn leave_out(nodes: &[Host], world: usize, avoid: &BTreeSet<&str>) -> Option<ExcludedNodes> {
    let mut free_slots = nodes.iter().fold(0_usize, |sum, node| sum.saturating_add(node.ranks));
    let mut left_out = Vec::new();
    for node in nodes.iter().filter(|node| avoid.iter().any(|host| is_node(host, &node.name))) {
        if free_slots >= world.saturating_add(node.ranks) {
            free_slots -= node.ranks;
            left_out.push(node.name.clone());
        }
    }
    let used = (nodes.len() - left_out.len()).min(world);
    (!left_out.is_empty()).then_some(ExcludedNodes { nodes: left_out, used })
}

/// True if `host`, the host of a rank, is the Slurm node `node`. `host` may be a fully qualified name.
pub(super) fn is_node(host: &str, node: &str) -> bool {
    host == node || host.strip_prefix(node).is_some_and(|domain| domain.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(world: usize, avoid: &[&str]) -> String {
        let host = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        let host_pool = HostPool::Hosts(vec![host("a", 2), host("b", 2), host("c", 1)]);
        let Placement::Hosts(hosts) = place(&host_pool, world, &avoid.iter().copied().collect()) else { panic!() };
        hosts.iter().map(|host| format!("{}:{} ", host.name, host.ranks)).collect()
    }

    #[test]
    fn hosts_are_filled_in_order_and_failed_ones_come_last() {
        assert_eq!(placed(3, &[]), "a:2 b:1 ");
        assert_eq!(placed(3, &["a"]), "b:2 c:1 ");
        assert_eq!(placed(4, &["a"]), "b:2 c:1 a:1 ");
        assert_eq!(placed(5, &["a", "b", "c"]), "a:2 b:2 c:1 ");
        assert_eq!(placed(2, &["nowhere"]), "a:2 ");
        assert_eq!(place(&HostPool::Here, 9, &BTreeSet::new()), Placement::Here);
        let host = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        assert_eq!(Placement::Hosts(vec![host("a", 2), host("b", 1)]).rank_hosts(), ["a", "a", "b"]);
    }

    #[test]
    fn failed_nodes_are_excluded_if_others_have_room() {
        let node = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        let nodes = vec![node("n1", 4), node("n2", 4), node("n3", 4)];
        let placed = |nodes: &[Host], world, avoid: &[&str]| {
            let placement = place(&HostPool::Allocation(nodes.to_vec()), world, &avoid.iter().copied().collect());
            let Placement::Allocation(left_out) = placement else { panic!("{placement:?}") };
            left_out.map(|left_out| (left_out.nodes.join(","), left_out.used))
        };
        let left_out = |names: &str, used| Some((names.to_owned(), used));
        assert_eq!(placed(&nodes, 8, &[]), None);
        assert_eq!(placed(&nodes, 8, &["n2"]), left_out("n2", 2));
        assert_eq!(placed(&nodes, 8, &["n2.cluster.example"]), left_out("n2", 2));
        assert_eq!(placed(&nodes, 8, &["n22", "n", "vm"]), None, "no nodes of the job");
        assert_eq!(placed(&nodes, 12, &["n2"]), None, "no node is spare");
        assert_eq!(placed(&nodes, 8, &["n1", "n3"]), left_out("n1", 2), "room for one only");
        assert_eq!(placed(&nodes, 4, &["n1", "n3"]), left_out("n1,n3", 1));
        assert_eq!(placed(&nodes, 1, &["n1"]), left_out("n1", 1));
        assert_eq!(placed(&[], 8, &["n1"]), None, "it is not known which nodes there are");
    }
}
