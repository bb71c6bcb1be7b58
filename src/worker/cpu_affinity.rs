//! CPU pinning: binds the threads of a rank to some NUMA nodes, so that the memory of the rank is local. A rank gets
//! the node of its GPU, if this node is known, and otherwise a share of the nodes of the host. A binding that the
//! launcher or the batch system has set is kept.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use lambert_collective::world::World;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// NUMA nodes in sysfs (Documentation/ABI/stable/sysfs-devices-node).
const NODES: &str = "/sys/devices/system/node";
/// PCI devices in sysfs, by bus ID.
const DEVICES: &str = "/sys/bus/pci/devices";

/// CPU binding of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuBinding {
    /// Bound to the CPUs of these NUMA nodes.
    Nodes {
        /// Numbers of the NUMA nodes.
        nodes: Vec<usize>,
        /// CPU numbers.
        cpus: Vec<usize>,
    },
    /// Not bound: the host has one NUMA node.
    OneNode,
    /// Not bound: the only rank of its host uses all CPUs.
    Alone,
    /// Bound by the launcher to this number of CPUs.
    Already(usize),
    /// Not bound: the topology is unknown, or the kernel refuses.
    Unknown,
}

impl fmt::Display for CpuBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes { nodes, cpus } => {
                let nodes: Vec<String> = nodes.iter().map(usize::to_string).collect();
                write!(f, "pinned to {} CPUs of NUMA node {}", cpus.len(), nodes.join(", "))
            }
            Self::OneNode => f.write_str("no CPU pinning (single NUMA node)"),
            Self::Alone => f.write_str("no CPU pinning (only rank of its host)"),
            Self::Already(count) => write!(f, "pinned to {count} CPUs by the launcher"),
            Self::Unknown => f.write_str("no CPU pinning (unknown NUMA topology)"),
        }
    }
}

/// A NUMA node with CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NumaNode {
    number: usize,
    cpus: BTreeSet<usize>,
}

/// Binds this thread and the threads that it starts later. `gpu` is the PCI bus ID of the GPU of this rank.
pub fn bind(world: Option<&World>, gpu: Option<&str>) -> CpuBinding {
    let Ok(own) = sched_getaffinity(None) else { return CpuBinding::Unknown };
    let allowed = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let near = gpu.and_then(|gpu| node_of(Path::new(DEVICES), gpu));
    let ranks = world.map_or([0, 1], |world| [world.local_rank, world.local_size]);
    let binding = choose(&nodes(Path::new(NODES)), &allowed, ranks, near);
    if let CpuBinding::Nodes { cpus, .. } = &binding {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        if sched_setaffinity(None, &set).is_err() {
            return CpuBinding::Unknown;
        }
    }
    binding
}

/// Chooses the CPUs of local rank `rank` of `size` local ranks, for a process that may run on the CPUs `allowed`. If
/// the NUMA node of the GPU (`near`) is known, chooses the CPUs of this node.
fn choose(nodes: &[NumaNode], allowed: &BTreeSet<usize>, [rank, size]: [usize; 2], near: Option<usize>) -> CpuBinding {
    let all: BTreeSet<usize> = nodes.iter().flat_map(|node| &node.cpus).copied().collect();
    let of = |chosen: &[&NumaNode]| CpuBinding::Nodes {
        nodes: chosen.iter().map(|node| node.number).collect(),
        cpus: chosen.iter().flat_map(|node| &node.cpus).copied().collect(),
    };
    match nodes {
        [] => return CpuBinding::Unknown,
        _ if !all.is_subset(allowed) => return CpuBinding::Already(allowed.len()),
        [_] => return CpuBinding::OneNode,
        _ => (),
    }
    if let Some(near) = nodes.iter().find(|node| Some(node.number) == near) {
        return of(&[near]);
    }
    if size <= 1 || rank >= size {
        return CpuBinding::Alone;
    }
    let first = rank * nodes.len() / size;
    let end = ((rank + 1) * nodes.len() / size).max(first + 1);
    of(&nodes[first..end].iter().collect::<Vec<_>>())
}

/// Reads the NUMA nodes that have CPUs, by number.
fn nodes(folder: &Path) -> Vec<NumaNode> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let node = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = list(std::fs::read_to_string(entry.path().join("cpulist")).ok()?.trim())?;
        (!cpus.is_empty()).then_some(NumaNode { number, cpus })
    };
    let mut nodes: Vec<NumaNode> = entries.filter_map(node).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Parses a CPU list such as `0-3,8,10-11`.
fn list(text: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

/// Returns the NUMA node of a PCI device. `None` if sysfs has -1, which means that the device has no node.
fn node_of(folder: &Path, bus: &str) -> Option<usize> {
    std::fs::read_to_string(folder.join(bus.to_lowercase()).join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(count: usize) -> Vec<NumaNode> {
        (0..count).map(|number| NumaNode { number, cpus: (4 * number..4 * number + 4).collect() }).collect()
    }

    fn chosen(count: usize, ranks: [usize; 2], near: Option<usize>) -> Option<Vec<usize>> {
        match choose(&host(count), &(0..4 * count).collect(), ranks, near) {
            CpuBinding::Nodes { nodes, cpus } => {
                assert_eq!(cpus.len(), 4 * nodes.len());
                assert_eq!(cpus[0], 4 * nodes[0]);
                Some(nodes)
            }
            _ => None,
        }
    }

    #[test]
    fn ranks_divide_the_nodes_of_their_host() {
        let of = |nodes, size| (0..size).map(|rank| chosen(nodes, [rank, size], None).unwrap()).collect::<Vec<_>>();
        assert_eq!(of(2, 2), [[0], [1]]);
        assert_eq!(of(2, 4), [[0], [0], [1], [1]]);
        assert_eq!(of(4, 2), [[0, 1], [2, 3]]);
        assert_eq!(of(2, 3), [[0], [0], [1]]);
        assert_eq!(of(3, 2), [vec![0], vec![1, 2]]);
        assert_eq!(chosen(2, [0, 8], Some(1)), Some(vec![1]), "the node of its gpu");
        assert_eq!(chosen(2, [0, 1], Some(1)), Some(vec![1]), "alone, too");
    }

    #[test]
    fn no_binding_is_set_if_it_would_not_help() {
        let all = |count: usize| (0..4 * count).collect();
        assert_eq!(choose(&host(1), &all(1), [1, 2], Some(0)), CpuBinding::OneNode);
        assert_eq!(choose(&host(2), &all(2), [0, 1], None), CpuBinding::Alone);
        assert_eq!(choose(&host(2), &(0..4).collect(), [0, 2], None), CpuBinding::Already(4));
        assert_eq!(choose(&[], &all(1), [0, 2], None), CpuBinding::Unknown);
    }

    #[test]
    fn the_topology_is_read_from_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        // The last node has only memory.
        for (name, cpus) in [("node1", "4-7,12-15\n"), ("node0", "0-3,8-11\n"), ("node2", "\n"), ("power", "")] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("cpulist"), cpus).unwrap();
        }
        let found = nodes(folder.path());
        assert_eq!(found.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found[1].cpus, BTreeSet::from([4, 5, 6, 7, 12, 13, 14, 15]));
        std::fs::create_dir(folder.path().join("0000:1b:00.0")).unwrap();
        let file = folder.path().join("0000:1b:00.0/numa_node");
        std::fs::write(&file, "1\n").unwrap();
        assert_eq!(node_of(folder.path(), "0000:1B:00.0"), Some(1));
        std::fs::write(&file, "-1\n").unwrap();
        assert_eq!(node_of(folder.path(), "0000:1B:00.0"), None);
    }

    #[test]
    fn an_existing_binding_is_kept() {
        let bound = || {
            let own = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let binding = bind(None, None);
            assert_eq!(sched_getaffinity(None).unwrap(), one);
            (own.count(), binding)
        };
        let (before, binding) = std::thread::spawn(bound).join().unwrap();
        if before > 1 && Path::new(NODES).is_dir() {
            assert_eq!(binding, CpuBinding::Already(1));
        }
    }
}
