//! Whether the devices of all ranks go together: a card for each, or a processor for each.

use serde::{Deserialize, Serialize};

use super::Card;

/// Two ranks whose devices do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Clash {
    /// They have one card.
    #[error(
        "ranks {} and {} have the same card, {card} of host {host}; device.share = true allows it",
        ranks[0],
        ranks[1]
    )]
    Shared {
        /// Which ranks.
        ranks: [usize; 2],
        /// The card, by its place on the bus.
        card: String,
        /// Their host.
        host: String,
    },
    /// The same where NCCL sums, which takes one rank a card.
    #[error(
        "ranks {} and {} have the same card, {card} of host {host}, and NCCL sums for one rank a card: cluster.all_reduce.backend = \"mpi\" with \
         device.share = true sums between ranks that share one",
        ranks[0],
        ranks[1]
    )]
    SharedOverNccl {
        /// Which ranks.
        ranks: [usize; 2],
        /// The card, by its place on the bus.
        card: String,
        /// Their host.
        host: String,
    },
    /// One has a card, the other has not: it would be waited for in every step, and round otherwise.
    #[error(
        "rank {} computes on a card of host {} and rank {} on a processor of host {}: all ranks of a run have the same kind of device (device.kind = \"cpu\" or \"cuda\" says which)",
        card.0,
        card.1,
        processor.0,
        processor.1
    )]
    Mixed {
        /// The first rank with a card, and its host.
        card: (usize, String),
        /// The first without, and its host.
        processor: (usize, String),
    },
}

/// Where a rank computes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    host: String,
    /// By its place on the bus.
    card: Option<String>,
    /// What NCCL takes its host for, where somebody says so.
    host_for_nccl: Option<String>,
}

/// Whether ranks may have one card together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// No.
    Refused,
    /// Yes.
    Allowed,
    /// NCCL sums, which takes one rank a card of a host.
    RefusedByNccl,
    /// NCCL sums; where `NCCL_HOSTID` says that they are on different hosts, it takes them.
    OnOtherHostsForNccl,
}

impl Place {
    /// Of this rank.
    pub fn here(card: Option<&Card>) -> Self {
        let host = lambert_store::host::name();
        let host_for_nccl = std::env::var("NCCL_HOSTID").ok();
        Self { host, card: card.map(|card| card.facts.bus.clone()), host_for_nccl }
    }
}

/// The first two ranks that do not go together.
pub fn clash(all: &[Place], sharing: Sharing) -> Option<Clash> {
    let first = |with_card: bool| {
        let rank = all.iter().position(|place| place.card.is_some() == with_card)?;
        Some((rank, all[rank].host.clone()))
    };
    if let (Some(card), Some(processor)) = (first(true), first(false)) {
        return Some(Clash::Mixed { card, processor });
    }
    let same = |ranks: &[usize; 2]| {
        let [first, second] = ranks.map(|rank| &all[rank]);
        let is_apart = sharing == Sharing::OnOtherHostsForNccl && first.host_for_nccl != second.host_for_nccl;
        first.host == second.host && first.card == second.card && sharing != Sharing::Allowed && !is_apart
    };
    let mut pairs = (0..all.len()).flat_map(|second| (0..second).map(move |first| [first, second]));
    let ranks = pairs.find(same)?;
    let Place { host, card, .. } = &all[ranks[0]];
    let (card, host) = (card.clone()?, host.clone());
    Some(match sharing {
        Sharing::Refused | Sharing::Allowed => Clash::Shared { ranks, card, host },
        Sharing::RefusedByNccl | Sharing::OnOtherHostsForNccl => Clash::SharedOverNccl { ranks, card, host },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(of: &[(&str, &str)]) -> Vec<Place> {
        let place = |(host, card): &(&str, &str)| Place {
            host: (*host).to_owned(),
            card: (!card.is_empty()).then(|| (*card).to_owned()),
            host_for_nccl: None,
        };
        of.iter().map(place).collect()
    }

    #[test]
    fn a_card_that_two_ranks_have_is_found() {
        assert_eq!(clash(&places(&[("a", "1"), ("a", "2"), ("b", "1")]), Sharing::Refused), None);
        let shared = places(&[("a", "1"), ("a", "2"), ("b", "1"), ("a", "2")]);
        let said = clash(&shared, Sharing::Refused).unwrap().to_string();
        assert!(said.starts_with("ranks 1 and 3 have the same card, 2 of host a"), "{said}");
        assert_eq!(clash(&shared, Sharing::Allowed), None);
        // NCCL takes it only where it is told of other hosts.
        for sharing in [Sharing::RefusedByNccl, Sharing::OnOtherHostsForNccl] {
            let said = clash(&shared, sharing).unwrap().to_string();
            assert!(
                said.starts_with("ranks 1 and 3 have the same card, 2 of host a, and NCCL sums for one rank a card"),
                "{said}"
            );
        }
        let mut apart = shared;
        apart[3].host_for_nccl = Some("other".to_owned());
        assert_eq!(clash(&apart, Sharing::OnOtherHostsForNccl), None);
        assert!(clash(&apart, Sharing::RefusedByNccl).is_some());
    }

    #[test]
    fn cards_and_processors_do_not_go_together() {
        let said =
            clash(&places(&[("a", "1"), ("a", "2"), ("b", ""), ("b", "")]), Sharing::Allowed).unwrap().to_string();
        assert!(said.starts_with("rank 0 computes on a card of host a and rank 2 on a processor of host b"), "{said}");
        assert_eq!(clash(&places(&[("a", ""), ("a", ""), ("b", "")]), Sharing::Refused), None, "processors are shared");
    }
}
