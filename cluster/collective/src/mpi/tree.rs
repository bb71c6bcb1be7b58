//! Binomial trees over the ranks, and the encoding of gathered messages.

/// Neighbors of a rank in a binomial tree.
pub struct BinomialTree {
    /// Parent; `None` for the root.
    pub parent: Option<usize>,
    /// Children, those with the largest subtrees first.
    pub children: Vec<usize>,
}

/// Returns the neighbors of `rank` in the binomial tree of `world_size` ranks with root `root`. Depth and number of
/// children are at most log2(`world_size`), rounded up.
pub fn binomial(rank: usize, world_size: usize, root: usize) -> BinomialTree {
    let relative = (rank + world_size - root) % world_size;
    let rank_at = |relative: usize| (relative + root) % world_size;
    // The relative rank of the parent is `relative` without its lowest set bit. The relative rank of a child is
    // `relative` with one more bit set, which is below the lowest set bit.
    let lowest_bit = if relative == 0 { world_size.next_power_of_two() } else { 1 << relative.trailing_zeros() };
    let below = (0..lowest_bit.trailing_zeros()).rev().map(|bit| relative + (1 << bit));
    BinomialTree {
        parent: (relative != 0).then(|| rank_at(relative - lowest_bit)),
        children: below.filter(|child| *child < world_size).map(rank_at).collect(),
    }
}

/// Encodes the bytes of one rank: first the rank and the length as little-endian u64, then the bytes.
pub fn pack(rank: usize, bytes: &[u8]) -> Vec<u8> {
    let header = [rank as u64, bytes.len() as u64].map(u64::to_le_bytes);
    [header.as_flattened(), bytes].concat()
}

/// Decodes concatenated messages of [`pack`], in any order. Returns the bytes of each rank, or `None` unless each rank
/// occurs exactly once.
pub fn unpack(mut message: &[u8], world_size: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = vec![None; world_size];
    while !message.is_empty() {
        let (rank, rest) = message.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        let entry = all.get_mut(u64::from_le_bytes(*rank) as usize)?;
        if entry.replace(bytes.to_vec()).is_some() {
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
    fn every_rank_is_at_most_log2_messages_from_the_root() {
        for world_size in 1..=33usize {
            for root in [0, world_size / 2, world_size - 1] {
                let tree = |rank| binomial(rank, world_size, root);
                for rank in 0..world_size {
                    let mut path = vec![rank];
                    while let Some(parent) = tree(path[path.len() - 1]).parent {
                        assert!(tree(parent).children.contains(&path[path.len() - 1]));
                        path.push(parent);
                    }
                    assert_eq!(path.last(), Some(&root));
                    assert!(path.len() <= 2 + world_size.ilog2() as usize, "{path:?}");
                }
                let children: usize = (0..world_size).map(|rank| tree(rank).children.len()).sum();
                assert_eq!(children, world_size - 1, "each rank but the root has one parent");
            }
        }
    }

    #[test]
    fn packed_messages_unpack_to_the_same_bytes() {
        let of = |rank: usize| vec![rank as u8; rank * 3];
        let message = [2, 0, 1].map(|rank| pack(rank, &of(rank))).concat();
        assert_eq!(unpack(&message, 3), Some(vec![of(0), of(1), of(2)]));
        assert_eq!(unpack(&message, 4), None, "a rank is missing");
        assert_eq!(unpack(&message, 2), None, "a rank is outside the world");
        assert_eq!(unpack(&message[..message.len() - 1], 3), None, "truncated");
        assert_eq!(unpack(&[pack(0, b"a"), pack(0, b"b")].concat(), 1), None, "a rank occurs twice");
    }
}
