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
    /// Where the launcher puts them: on the nodes that Slurm has given.
    Allocation,
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
    /// On the nodes that Slurm has given.
    Allocation,
}

/// Puts `world` ranks on the hosts of `room` in their order; those in `avoid` come last, and so are left out where the
/// others have room enough.
pub fn place(room: &Room, world: usize, avoid: &BTreeSet<&str>) -> Placement {
    let hosts = match room {
        Room::Here => return Placement::Here,
        Room::Allocation => return Placement::Allocation,
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
}
