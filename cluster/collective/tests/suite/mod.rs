//! What every backend must do, seen from one rank. All ranks of a group call [`everything`] at the same time.

use lambert_collective::{Collective, Error};

/// Runs all checks; returns a digest of every sum's bits, which must be equal on all ranks and in every run.
pub fn everything(group: &mut dyn Collective) -> u64 {
    assert!(group.rank() < group.world());
    sums_are_exact_where_numbers_are(group);
    sums_in_double_precision(group);
    broadcasts_replace_whatever_was_there(group);
    gathers_keep_rank_order_and_lengths(group);
    empty_operations_pass(group);
    a_root_outside_the_world_is_refused(group);
    barriers_hold_until_all_have_come(group);
    sums_of_awkward_numbers_have_equal_bits_everywhere(group)
}

/// Small integers have exact sums in any order. The lengths cross the sizes at which MPI changes its algorithm.
fn sums_are_exact_where_numbers_are(group: &mut dyn Collective) {
    let (rank, world) = (group.rank(), group.world());
    for length in [1, 2, 7, 1000, 4097, 300_001] {
        let mut values: Vec<f32> = (0..length).map(|i| ((i * 31 + rank * 7) % 101) as f32).collect();
        group.all_reduce_sum_f32(&mut values).unwrap();
        for (i, &value) in values.iter().enumerate() {
            let expected: usize = (0..world).map(|rank| (i * 31 + rank * 7) % 101).sum();
            assert_eq!(value, expected as f32, "element {i} of {length}");
        }
    }
}

fn sums_in_double_precision(group: &mut dyn Collective) {
    // 2^40 + 1 per rank: f32 would lose the ones.
    let mut values = [(1u64 << 40) as f64 + 1.0, group.rank() as f64];
    group.all_reduce_sum_f64(&mut values).unwrap();
    let world = group.world() as f64;
    assert_eq!(values, [world * ((1u64 << 40) as f64 + 1.0), world * (world - 1.0) / 2.0]);
}

fn broadcasts_replace_whatever_was_there(group: &mut dyn Collective) {
    for root in 0..group.world() {
        let message: Vec<u8> = (0..1000 * root + 5).map(|i| (i % 251) as u8).collect();
        let mut bytes = if group.rank() == root { message.clone() } else { vec![9; group.rank() * 100] };
        group.broadcast_bytes(&mut bytes, root).unwrap();
        assert_eq!(bytes, message);
    }
}

fn gathers_keep_rank_order_and_lengths(group: &mut dyn Collective) {
    for root in 0..group.world() {
        let of = |rank: usize| vec![rank as u8; rank * 70_000 + 1];
        let gathered = group.gather_bytes(&of(group.rank()), root).unwrap();
        assert_eq!(gathered.is_some(), group.rank() == root);
        if let Some(all) = gathered {
            assert_eq!(all, (0..group.world()).map(of).collect::<Vec<_>>());
        }
    }
}

fn empty_operations_pass(group: &mut dyn Collective) {
    group.all_reduce_sum_f32(&mut []).unwrap();
    group.all_reduce_sum_f64(&mut []).unwrap();
    let mut bytes = Vec::new();
    group.broadcast_bytes(&mut bytes, 0).unwrap();
    assert!(bytes.is_empty());
    let gathered = group.gather_bytes(&[], 0).unwrap();
    assert!(gathered.is_none_or(|all| all.iter().all(Vec::is_empty)));
}

fn a_root_outside_the_world_is_refused(group: &mut dyn Collective) {
    let root = group.world();
    assert!(matches!(group.gather_bytes(&[], root), Err(Error::Mismatch { .. })));
    assert!(matches!(group.broadcast_bytes(&mut Vec::new(), root), Err(Error::Mismatch { .. })));
}

fn barriers_hold_until_all_have_come(group: &mut dyn Collective) {
    let late = std::time::Duration::from_millis(100);
    let start = std::time::Instant::now();
    if group.rank() == 0 {
        std::thread::sleep(late);
    }
    group.barrier().unwrap();
    // The ranks have not started together; only rank 0 knows for how long the others had to wait.
    assert!(group.rank() != 0 || start.elapsed() >= late);
}

/// Numbers of very different sizes, whose sum depends on the order: two runs must agree, bit for bit.
fn sums_of_awkward_numbers_have_equal_bits_everywhere(group: &mut dyn Collective) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for length in [3, 1001, 65_537] {
        let number = |i: usize, rank: usize| {
            let mixed = (i as u64 * 0x9e37_79b9 + rank as u64 * 0x85eb_ca6b) % 16_777_213;
            mixed as f32 * 10f32.powi((mixed % 17) as i32 - 8)
        };
        let awkward: Vec<f32> = (0..length).map(|i| number(i, group.rank())).collect();
        let mut first = awkward.clone();
        let mut second = awkward;
        group.all_reduce_sum_f32(&mut first).unwrap();
        group.all_reduce_sum_f32(&mut second).unwrap();
        for (a, b) in first.iter().zip(&second) {
            assert_eq!(a.to_bits(), b.to_bits());
            digest = (digest ^ u64::from(a.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
    }
    let all = group.gather_bytes(&digest.to_le_bytes(), 0).unwrap();
    assert!(all.is_none_or(|all| all.iter().all(|other| *other == digest.to_le_bytes())), "ranks got different bits");
    digest
}
