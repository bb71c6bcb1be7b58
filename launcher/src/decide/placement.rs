//! Which ranks an attempt has and where they are: decided at each start, not written in the run's configuration.

use std::collections::BTreeSet;

use lambert_config::run::Host;

/// A start of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its number, which is its lease's.
    pub number: u32,
    /// Ranks.
    pub world: usize,
    /// Where they are.
    pub placement: Placement,
}

/// Where the ranks of an attempt are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// On the coordinator's host.
    Here,
    /// On these hosts, filled in this order.
    Hosts(Vec<Host>),
    /// Where the launcher puts them: on the nodes that Slurm has given, but for those that are left out, if any are.
    Allocation(Option<LeftOut>),
}

/// Nodes of a Slurm job that an attempt does without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Their names.
    pub nodes: Vec<String>,
    /// How many others the ranks are on.
    pub used: usize,
}

impl Placement {
    /// The names of the hosts, one a rank: launchers fill them in order. None where it is not decided here who is where.
    pub fn places(&self) -> Vec<String> {
        let Self::Hosts(hosts) = self else { return Vec::new() };
        hosts.iter().flat_map(|host| std::iter::repeat_n(host.name.clone(), host.ranks)).collect()
    }
}

/// Where ranks may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Room {
    /// On the coordinator's host only.
    #[default]
    Here,
    /// On these hosts.
    Hosts(Vec<Host>),
    /// On the nodes that Slurm has given: their names and how many ranks each has room for, where that is known.
    Allocation(Vec<Host>),
}

/// Puts `world` ranks on the hosts of `room` in their order; those in `avoid` come last, and so are left out where the
/// others have room enough.
pub fn place(room: &Room, world: usize, avoid: &BTreeSet<&str>) -> Placement {
    let hosts = match room {
        Room::Here => return Placement::Here,
        Room::Allocation(nodes) => return Placement::Allocation(leave_out(nodes, world, avoid)),
        Room::Hosts(hosts) => hosts,
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

/// Of the nodes in `avoid` those that `world` ranks can do without, in the order of the job's nodes.
fn leave_out(nodes: &[Host], world: usize, avoid: &BTreeSet<&str>) -> Option<LeftOut> {
    let mut room: usize = nodes.iter().map(|node| node.ranks).sum();
    let mut left_out = Vec::new();
    for node in nodes.iter().filter(|node| avoid.iter().any(|host| is_node(host, &node.name))) {
        if room >= world + node.ranks {
            room -= node.ranks;
            left_out.push(node.name.clone());
        }
    }
    let used = (nodes.len() - left_out.len()).min(world);
    (!left_out.is_empty()).then_some(LeftOut { nodes: left_out, used })
}

/// Whether a rank's host is the node of that name: a host may know itself by its domain, too, and Slurm does not.
fn is_node(host: &str, node: &str) -> bool {
    host == node || host.strip_prefix(node).is_some_and(|domain| domain.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(world: usize, avoid: &[&str]) -> String {
        let host = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        let room = Room::Hosts(vec![host("a", 2), host("b", 2), host("c", 1)]);
        let Placement::Hosts(hosts) = place(&room, world, &avoid.iter().copied().collect()) else { panic!() };
        hosts.iter().map(|host| format!("{}:{} ", host.name, host.ranks)).collect()
    }

    #[test]
    fn hosts_are_filled_in_order_and_failed_ones_come_last() {
        assert_eq!(placed(3, &[]), "a:2 b:1 ");
        assert_eq!(placed(3, &["a"]), "b:2 c:1 ");
        assert_eq!(placed(4, &["a"]), "b:2 c:1 a:1 ");
        assert_eq!(placed(5, &["a", "b", "c"]), "a:2 b:2 c:1 ");
        assert_eq!(placed(2, &["nowhere"]), "a:2 ");
        assert_eq!(place(&Room::Here, 9, &BTreeSet::new()), Placement::Here);
        let host = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        assert_eq!(Placement::Hosts(vec![host("a", 2), host("b", 1)]).places(), ["a", "a", "b"]);
    }

    #[test]
    fn nodes_that_failed_are_left_out_where_others_have_room() {
        let node = |name: &str, ranks| Host { name: name.to_owned(), ranks };
        let nodes = vec![node("n1", 4), node("n2", 4), node("n3", 4)];
        let placed = |nodes: &[Host], world, avoid: &[&str]| {
            let placement = place(&Room::Allocation(nodes.to_vec()), world, &avoid.iter().copied().collect());
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
