//! Communication schedules of one rank in an all-reduce. A schedule is plain data, independent of MPI and of buffers.
//!
//! The range to be summed is divided into chunks. The send buffer of a rank contains one chunk. Initially this is a
//! chunk of the values of the rank. Later it is the chunk that the rank last received and combined with its own values.
//! Each step sends the chunk in the send buffer.

/// One step of a schedule: a send and a receive that overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleStep {
    /// Destination of the chunk in the send buffer.
    pub send: Option<Peer>,
    /// Source of the received chunk, and the way to combine it with the rank's own values. The result becomes the
    /// content of the send buffer.
    pub receive: Option<(Peer, Combine)>,
}

/// Other rank of a transfer and the chunk that is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Other rank.
    pub rank: usize,
    /// Index of the chunk.
    pub chunk: usize,
}

/// Combination of a received chunk with the rank's own values of that chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Adds the own values to the received values. The own values stay unchanged.
    Add,
    /// Adds the own values to the received values and overwrites the own values with the sum.
    AddAndStore,
    /// Overwrites the own values with the received values.
    Store,
}

/// Ring all-reduce with one chunk per rank: reduce-scatter, then all-gather. Let `x[r]` be the values that rank `r` has for
/// chunk c, with r modulo the world size. Chunk c is always summed in the order `((x[c] + x[c + 1]) + x[c + 2]) + ...`.
pub fn ring(rank: usize, world_size: usize) -> Vec<ScheduleStep> {
    let (right, left) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
    let steps = 2 * (world_size - 1);
    let chunk_before = |steps: usize| (rank + 2 * world_size - steps) % world_size;
    let step = |step: usize| {
        let combine = match (step + 2).cmp(&world_size) {
            std::cmp::Ordering::Less => Combine::Add,
            std::cmp::Ordering::Equal => Combine::AddAndStore,
            std::cmp::Ordering::Greater => Combine::Store,
        };
        let receive = Peer { rank: left, chunk: chunk_before(step + 1) };
        ScheduleStep { send: Some(Peer { rank: right, chunk: chunk_before(step) }), receive: Some((receive, combine)) }
    };
    (0..steps).map(step).collect()
}

/// Recursive doubling with the whole range as one chunk. Let p be the largest power of two that is at most the world
/// size. Each rank with a number of at least p first sends its values to a partner, and receives the sum at the end.
/// The ranks below p exchange their sums. In each exchange, both ranks add the same two numbers. Addition is
/// commutative, so all ranks get the same bits.
pub fn recursive_doubling(rank: usize, world_size: usize) -> Vec<ScheduleStep> {
    let core = 1 << world_size.ilog2();
    let to = |rank| Some(Peer { rank, chunk: 0 });
    let from = |rank, combine| Some((Peer { rank, chunk: 0 }, combine));
    if rank >= core {
        let partner = rank - core;
        return vec![
            ScheduleStep { send: to(partner), receive: None },
            ScheduleStep { send: None, receive: from(partner, Combine::Store) },
        ];
    }
    let partner = Some(rank + core).filter(|partner| *partner < world_size);
    let folded_in = partner.map(|partner| ScheduleStep { send: None, receive: from(partner, Combine::AddAndStore) });
    let folded_out = partner.map(|partner| ScheduleStep { send: to(partner), receive: None });
    let exchange = |bit: u32| {
        let peer = rank ^ (1 << bit);
        ScheduleStep { send: to(peer), receive: from(peer, Combine::AddAndStore) }
    };
    folded_in.into_iter().chain((0..core.ilog2()).map(exchange)).chain(folded_out).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates the schedules of all ranks. Returns, for each rank and chunk, the ranks whose values were added, in
    /// the order of the additions.
    fn simulate(schedules: &[Vec<ScheduleStep>], chunks: usize) -> Vec<Vec<Vec<usize>>> {
        let world_size = schedules.len();
        let mut values: Vec<Vec<Vec<usize>>> = (0..world_size).map(|rank| vec![vec![rank]; chunks]).collect();
        let first = |rank: usize| schedules[rank].iter().find_map(|step| step.send).map_or(0, |send| send.chunk);
        let mut send_buffers: Vec<Vec<usize>> = (0..world_size).map(|rank| values[rank][first(rank)].clone()).collect();
        let mut next = vec![0; world_size];
        // Source, destination, chunk and value of each message in flight, in the order of the sends.
        let mut posted: Vec<(usize, usize, usize, Vec<usize>)> = Vec::new();
        let mut sent = vec![false; world_size];
        while (0..world_size).any(|rank| next[rank] < schedules[rank].len()) {
            let before = next.clone();
            for rank in 0..world_size {
                let Some(step) = schedules[rank].get(next[rank]) else { continue };
                if let Some(Peer { rank: peer, chunk }) = step.send.filter(|_| !sent[rank]) {
                    posted.push((rank, peer, chunk, send_buffers[rank].clone()));
                    sent[rank] = true;
                }
                if let Some((Peer { rank: peer, chunk }, combine)) = step.receive {
                    let Some(first) = posted.iter().position(|(from, to, ..)| (*from, *to) == (peer, rank)) else {
                        continue;
                    };
                    let (_, _, sent_chunk, mut value) = posted.remove(first);
                    assert_eq!(sent_chunk, chunk, "the received chunk is the expected one");
                    let own = &mut values[rank][chunk];
                    if combine != Combine::Store {
                        value.extend_from_slice(own);
                    }
                    if combine != Combine::Add {
                        own.clone_from(&value);
                    }
                    send_buffers[rank] = value;
                }
                (next[rank], sent[rank]) = (next[rank] + 1, false);
            }
            assert!(before != next || sent.contains(&true), "deadlock");
        }
        values
    }

    #[test]
    fn a_ring_adds_each_rank_once_in_a_fixed_order() {
        for world_size in 2..=9 {
            let schedules: Vec<_> = (0..world_size).map(|rank| ring(rank, world_size)).collect();
            let values = simulate(&schedules, world_size);
            for chunks in &values {
                for (chunk, sum) in chunks.iter().enumerate() {
                    let expected: Vec<usize> = (0..world_size).map(|step| (chunk + step) % world_size).collect();
                    assert_eq!(*sum, expected, "world size {world_size}, chunk {chunk}");
                }
            }
        }
        assert!(ring(0, 1).is_empty());
    }

    #[test]
    fn recursive_doubling_adds_each_rank_once_in_any_world() {
        for world_size in 1..=17 {
            let schedules: Vec<_> = (0..world_size).map(|rank| recursive_doubling(rank, world_size)).collect();
            for mut chunks in simulate(&schedules, 1) {
                chunks[0].sort_unstable();
                assert_eq!(chunks[0], (0..world_size).collect::<Vec<_>>());
            }
        }
    }
}
