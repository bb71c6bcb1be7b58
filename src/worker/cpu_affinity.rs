//! Which processors a rank's threads run on: those of one NUMA node, or of the nodes that are its share of its host, so that what a
//! rank computes with lies in its own memory. A launcher or a batch system that has chosen already is left alone.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use lambert_collective::world::World;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where Linux describes NUMA nodes (Documentation/ABI/stable/sysfs-devices-node).
const NODES: &str = "/sys/devices/system/node";
/// Where it describes devices by their place on the bus.
const DEVICES: &str = "/sys/bus/pci/devices";

/// What was decided about a rank's processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// Bound to these processors of these NUMA nodes.
    Nodes {
        /// Numbers of the nodes.
        nodes: Vec<usize>,
        /// Numbers of their processors.
        processors: Vec<usize>,
    },
    /// The host has one NUMA node.
    OneNode,
    /// This is the only rank of its host, and computes on all of it.
    Alone,
    /// It was bound to part of the host when it began.
    Already(usize),
    /// The host does not say, or the kernel refuses.
    Unknown,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes { nodes, processors } => {
                let nodes: Vec<String> = nodes.iter().map(usize::to_string).collect();
                write!(f, "bound to the {} processors of NUMA node {}", processors.len(), nodes.join(", "))
            }
            Self::OneNode => f.write_str("not bound: the host has one NUMA node"),
            Self::Alone => f.write_str("not bound: the only rank of its host"),
            Self::Already(count) => write!(f, "bound to {count} processors by what started it"),
            Self::Unknown => f.write_str("not bound: the host does not tell its NUMA nodes"),
        }
    }
}

/// A NUMA node with processors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    number: usize,
    processors: BTreeSet<usize>,
}

/// Binds this thread, and those that it starts from now on. `card` is the place on the bus of the card that the rank computes on.
pub fn bind(world: Option<&World>, card: Option<&str>) -> Binding {
    let Ok(own) = sched_getaffinity(None) else { return Binding::Unknown };
    let allowed = (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor)).collect();
    let near = card.and_then(|card| node_of(Path::new(DEVICES), card));
    let ranks = world.map_or([0, 1], |world| [world.local_rank, world.local_size]);
    let binding = choose(&nodes(Path::new(NODES)), &allowed, ranks, near);
    if let Binding::Nodes { processors, .. } = &binding {
        let mut set = CpuSet::new();
        processors.iter().for_each(|processor| set.set(*processor));
        if sched_setaffinity(None, &set).is_err() {
            return Binding::Unknown;
        }
    }
    binding
}

/// The processors of rank `rank` of `size` on a host with these nodes, where this process may run on `allowed`; those of node
/// `near` if it is known which is nearest to its card.
fn choose(nodes: &[Node], allowed: &BTreeSet<usize>, [rank, size]: [usize; 2], near: Option<usize>) -> Binding {
    let all: BTreeSet<usize> = nodes.iter().flat_map(|node| &node.processors).copied().collect();
    let of = |chosen: &[&Node]| Binding::Nodes {
        nodes: chosen.iter().map(|node| node.number).collect(),
        processors: chosen.iter().flat_map(|node| &node.processors).copied().collect(),
    };
    match nodes {
        [] => return Binding::Unknown,
        _ if !all.is_subset(allowed) => return Binding::Already(allowed.len()),
        [_] => return Binding::OneNode,
        _ => (),
    }
    if let Some(near) = nodes.iter().find(|node| Some(node.number) == near) {
        return of(&[near]);
    }
    if size <= 1 || rank >= size {
        return Binding::Alone;
    }
    let first = rank * nodes.len() / size;
    let end = ((rank + 1) * nodes.len() / size).max(first + 1);
    of(&nodes[first..end].iter().collect::<Vec<_>>())
}

/// The nodes that have processors, in the order of their numbers.
fn nodes(folder: &Path) -> Vec<Node> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let node = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let processors = list(std::fs::read_to_string(entry.path().join("cpulist")).ok()?.trim())?;
        (!processors.is_empty()).then_some(Node { number, processors })
    };
    let mut nodes: Vec<Node> = entries.filter_map(node).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// The numbers of a list such as `0-3,8,10-11`.
fn list(text: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// The NUMA node that a device of this place on the bus belongs to; -1 in its file says that there is none.
fn node_of(folder: &Path, bus: &str) -> Option<usize> {
    std::fs::read_to_string(folder.join(bus.to_lowercase()).join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(count: usize) -> Vec<Node> {
        (0..count).map(|number| Node { number, processors: (4 * number..4 * number + 4).collect() }).collect()
    }

    fn chosen(count: usize, ranks: [usize; 2], near: Option<usize>) -> Option<Vec<usize>> {
        match choose(&host(count), &(0..4 * count).collect(), ranks, near) {
            Binding::Nodes { nodes, processors } => {
                assert_eq!(processors.len(), 4 * nodes.len());
                assert_eq!(processors[0], 4 * nodes[0]);
                Some(nodes)
            }
            _ => None,
        }
    }

    #[test]
    fn ranks_share_the_nodes_of_their_host() {
        let of = |nodes, size| (0..size).map(|rank| chosen(nodes, [rank, size], None).unwrap()).collect::<Vec<_>>();
        assert_eq!(of(2, 2), [[0], [1]]);
        assert_eq!(of(2, 4), [[0], [0], [1], [1]]);
        assert_eq!(of(4, 2), [[0, 1], [2, 3]]);
        assert_eq!(of(2, 3), [[0], [0], [1]]);
        assert_eq!(of(3, 2), [vec![0], vec![1, 2]]);
        assert_eq!(chosen(2, [0, 8], Some(1)), Some(vec![1]), "the node of its card");
        assert_eq!(chosen(2, [0, 1], Some(1)), Some(vec![1]), "alone, too");
    }

    #[test]
    fn nothing_is_bound_where_it_would_not_help() {
        let all = |count: usize| (0..4 * count).collect();
        assert_eq!(choose(&host(1), &all(1), [1, 2], Some(0)), Binding::OneNode);
        assert_eq!(choose(&host(2), &all(2), [0, 1], None), Binding::Alone);
        assert_eq!(choose(&host(2), &(0..4).collect(), [0, 2], None), Binding::Already(4));
        assert_eq!(choose(&[], &all(1), [0, 2], None), Binding::Unknown);
    }

    #[test]
    fn the_host_is_read_as_linux_describes_it() {
        let folder = tempfile::tempdir().unwrap();
        // The last one is memory alone.
        for (name, processors) in [("node1", "4-7,12-15\n"), ("node0", "0-3,8-11\n"), ("node2", "\n"), ("power", "")] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("cpulist"), processors).unwrap();
        }
        let found = nodes(folder.path());
        assert_eq!(found.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found[1].processors, BTreeSet::from([4, 5, 6, 7, 12, 13, 14, 15]));
        std::fs::create_dir(folder.path().join("0000:1b:00.0")).unwrap();
        let file = folder.path().join("0000:1b:00.0/numa_node");
        std::fs::write(&file, "1\n").unwrap();
        assert_eq!(node_of(folder.path(), "0000:1B:00.0"), Some(1));
        std::fs::write(&file, "-1\n").unwrap();
        assert_eq!(node_of(folder.path(), "0000:1B:00.0"), None);
    }

    #[test]
    fn a_thread_that_was_bound_stays_there() {
        let bound = || {
            let own = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|processor| own.is_set(*processor)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let binding = bind(None, None);
            assert_eq!(sched_getaffinity(None).unwrap(), one);
            (own.count(), binding)
        };
        let (before, binding) = std::thread::spawn(bound).join().unwrap();
        if before > 1 && Path::new(NODES).is_dir() {
            assert_eq!(binding, Binding::Already(1));
        }
    }
}
