//! Binomial trees over the ranks, and the messages that are gathered along them.

/// A rank's neighbours in a tree.
pub struct Tree {
    /// The one on the way to the root; none for the root.
    pub parent: Option<usize>,
    /// The others, the one with the most ranks below it first.
    pub children: Vec<usize>,
}

/// The place of `rank` in the binomial tree of `world` ranks from `root` on: no rank is further from the root than log2(world)
/// messages, and the root has no more than that many children.
pub fn binomial(rank: usize, world: usize, root: usize) -> Tree {
    let place = (rank + world - root) % world;
    let rank_at = |place: usize| (place + root) % world;
    // The lowest bit of a place leads to its parent; the children have one bit more below it.
    let own = if place == 0 { world.next_power_of_two() } else { 1 << place.trailing_zeros() };
    let below = (0..own.trailing_zeros()).rev().map(|bit| place + (1 << bit));
    Tree {
        parent: (place != 0).then(|| rank_at(place - own)),
        children: below.filter(|child| *child < world).map(rank_at).collect(),
    }
}

/// One rank's bytes as they travel: its number and their length as little-endian u64, then the bytes.
pub fn packed(rank: usize, bytes: &[u8]) -> Vec<u8> {
    let header = [rank as u64, bytes.len() as u64].map(u64::to_le_bytes);
    [header.as_flattened(), bytes].concat()
}

/// The bytes of each rank of `world`, in rank order, from [`packed`] ones in any order; `None` unless each is there once.
pub fn unpacked(mut message: &[u8], world: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = vec![None; world];
    while !message.is_empty() {
        let (rank, rest) = message.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        let place = all.get_mut(u64::from_le_bytes(*rank) as usize)?;
        if place.replace(bytes.to_vec()).is_some() {
            return None;
        }
        message = rest;
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hangs_below_the_root_by_few_messages() {
        for world in 1..=33usize {
            for root in [0, world / 2, world - 1] {
                let tree = |rank| binomial(rank, world, root);
                for rank in 0..world {
                    let mut path = vec![rank];
                    while let Some(parent) = tree(path[path.len() - 1]).parent {
                        assert!(tree(parent).children.contains(&path[path.len() - 1]));
                        path.push(parent);
                    }
                    assert_eq!(path.last(), Some(&root));
                    assert!(path.len() <= 2 + world.ilog2() as usize, "{path:?}");
                }
                let children: usize = (0..world).map(|rank| tree(rank).children.len()).sum();
                assert_eq!(children, world - 1, "each rank but the root has one parent");
            }
        }
    }

    #[test]
    fn messages_are_taken_apart_as_they_were_put_together() {
        let of = |rank: usize| vec![rank as u8; rank * 3];
        let message = [2, 0, 1].map(|rank| packed(rank, &of(rank))).concat();
        assert_eq!(unpacked(&message, 3), Some(vec![of(0), of(1), of(2)]));
        assert_eq!(unpacked(&message, 4), None, "one is missing");
        assert_eq!(unpacked(&message, 2), None, "one is too many");
        assert_eq!(unpacked(&message[..message.len() - 1], 3), None, "cut off");
        assert_eq!(unpacked(&[packed(0, b"a"), packed(0, b"b")].concat(), 1), None, "twice");
    }
}
