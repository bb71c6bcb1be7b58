//! Who sends what to whom, as data: the steps of one rank in an all-reduce. Nothing here knows MPI or memory.
//!
//! A rank *holds* one part of the range that is summed: what it loaded before its first step, or what it received in the last
//! one and combined with its own values. It always sends what it holds.

/// One step: a part is sent, another received, at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Where what is held goes to.
    pub send: Option<Move>,
    /// What comes from where, and what it does; it is held afterwards.
    pub receive: Option<(Move, Effect)>,
}

/// A part of the range and the rank at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The other rank.
    pub peer: usize,
    /// The number of the part.
    pub part: usize,
}

/// What a received part does to this rank's values of the same part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// These are added to it; they stay as they are.
    Add,
    /// These are added to it, and replaced by the sum.
    AddAndKeep,
    /// These are replaced by it.
    Keep,
}

/// A ring over as many parts as ranks: reduce-scatter, then all-gather. Part p is summed from rank p on around the ring,
/// `((x[p] + x[p + 1]) + x[p + 2]) + ...`, with ranks counted modulo the world: always in this order.
pub fn ring(rank: usize, world: usize) -> Vec<Step> {
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    let steps = 2 * (world - 1);
    let part_before = |steps: usize| (rank + 2 * world - steps) % world;
    let step = |step: usize| {
        let effect = match (step + 2).cmp(&world) {
            std::cmp::Ordering::Less => Effect::Add,
            std::cmp::Ordering::Equal => Effect::AddAndKeep,
            std::cmp::Ordering::Greater => Effect::Keep,
        };
        let receive = Move { peer: left, part: part_before(step + 1) };
        Step { send: Some(Move { peer: right, part: part_before(step) }), receive: Some((receive, effect)) }
    };
    (0..steps).map(step).collect()
}

/// Recursive doubling over the whole range as one part. Of a world that is no power of two, each rank beyond the greatest one in
/// it first hands its values to a partner, which sends it the sum at the end. Both ends of an exchange add the same two numbers, and
/// addition commutes, so all ranks get the same bits.
pub fn doubling(rank: usize, world: usize) -> Vec<Step> {
    let core = 1 << world.ilog2();
    let to = |peer| Some(Move { peer, part: 0 });
    let from = |peer, effect| Some((Move { peer, part: 0 }, effect));
    if rank >= core {
        let partner = rank - core;
        return vec![
            Step { send: to(partner), receive: None },
            Step { send: None, receive: from(partner, Effect::Keep) },
        ];
    }
    let partner = Some(rank + core).filter(|partner| *partner < world);
    let folded_in = partner.map(|partner| Step { send: None, receive: from(partner, Effect::AddAndKeep) });
    let folded_out = partner.map(|partner| Step { send: to(partner), receive: None });
    let exchange = |bit: u32| {
        let peer = rank ^ (1 << bit);
        Step { send: to(peer), receive: from(peer, Effect::AddAndKeep) }
    };
    folded_in.into_iter().chain((0..core.ilog2()).map(exchange)).chain(folded_out).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries the schedules of all ranks out over sets of (part, rank), and returns what each rank's parts hold: the ranks that were
    /// added, in order.
    fn carried_out(schedules: &[Vec<Step>], parts: usize) -> Vec<Vec<Vec<usize>>> {
        let world = schedules.len();
        let mut values: Vec<Vec<Vec<usize>>> = (0..world).map(|rank| vec![vec![rank]; parts]).collect();
        let first = |rank: usize| schedules[rank].iter().find_map(|step| step.send).map_or(0, |send| send.part);
        let mut held: Vec<Vec<usize>> = (0..world).map(|rank| values[rank][first(rank)].clone()).collect();
        let mut next = vec![0; world];
        // From, to, part and value of each message on its way, in the order of the sends.
        let mut posted: Vec<(usize, usize, usize, Vec<usize>)> = Vec::new();
        let mut sent = vec![false; world];
        while (0..world).any(|rank| next[rank] < schedules[rank].len()) {
            let before = next.clone();
            for rank in 0..world {
                let Some(step) = schedules[rank].get(next[rank]) else { continue };
                if let Some(Move { peer, part }) = step.send.filter(|_| !sent[rank]) {
                    posted.push((rank, peer, part, held[rank].clone()));
                    sent[rank] = true;
                }
                if let Some((Move { peer, part }, effect)) = step.receive {
                    let Some(first) = posted.iter().position(|(from, to, ..)| (*from, *to) == (peer, rank)) else {
                        continue;
                    };
                    let (_, _, sent_part, mut value) = posted.remove(first);
                    assert_eq!(sent_part, part, "what is sent is what is expected");
                    let own = &mut values[rank][part];
                    if effect != Effect::Keep {
                        value.extend_from_slice(own);
                    }
                    if effect != Effect::Add {
                        own.clone_from(&value);
                    }
                    held[rank] = value;
                }
                (next[rank], sent[rank]) = (next[rank] + 1, false);
            }
            assert!(before != next || sent.contains(&true), "the ranks wait for each other");
        }
        values
    }

    #[test]
    fn a_ring_adds_each_rank_once_in_one_order() {
        for world in 2..=9 {
            let schedules: Vec<_> = (0..world).map(|rank| ring(rank, world)).collect();
            let values = carried_out(&schedules, world);
            for parts in &values {
                for (part, sum) in parts.iter().enumerate() {
                    let expected: Vec<usize> = (0..world).map(|step| (part + step) % world).collect();
                    assert_eq!(*sum, expected, "world {world}, part {part}");
                }
            }
        }
        assert!(ring(0, 1).is_empty());
    }

    #[test]
    fn doubling_adds_each_rank_once_in_any_world() {
        for world in 1..=17 {
            let schedules: Vec<_> = (0..world).map(|rank| doubling(rank, world)).collect();
            for mut parts in carried_out(&schedules, 1) {
                parts[0].sort_unstable();
                assert_eq!(parts[0], (0..world).collect::<Vec<_>>());
            }
        }
    }
}
