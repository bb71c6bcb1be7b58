//! What every backend must do, seen from one rank. All ranks of a group call [`everything`] at the same time.

use std::time::{Duration, Instant};

use lambert_collective::{Bucket, Endpoints, Error, Group, Reducer, all_reduce};

/// What a term or a partial sum is rounded by at most, relative to it, where gradients travel as f32.
pub const F32: f64 = 1.0 / (1 << 24) as f64;

/// The same where they travel as bf16.
#[allow(dead_code, reason = "not every backend has it")]
pub const BF16: f64 = 1.0 / (1 << 8) as f64;

/// Runs all checks; returns a digest of every sum's bits, which must be equal on all ranks and in every run. `rounding` is
/// that of the gradients.
pub fn everything(ends: &mut Endpoints, rounding: f64) -> u64 {
    let (group, reducer) = (&mut *ends.group, &mut *ends.reducer);
    assert!(group.rank() < group.world());
    assert!([group.name(), "nccl"].contains(&reducer.name()));
    sums_are_exact_where_numbers_are(group, reducer);
    sums_in_double_precision(group);
    broadcasts_replace_whatever_was_there(group);
    gathers_keep_rank_order_and_lengths(group);
    empty_operations_pass(group, reducer);
    a_root_outside_the_world_is_refused(group);
    barriers_hold_until_all_have_come(group);
    buckets_may_be_under_way_together(group, reducer);
    a_bucket_changes_nothing_beside_it(group, reducer);
    a_device_is_refused(reducer);
    a_deadline_that_is_kept_changes_nothing(group, reducer);
    a_bucket_is_summed_beside_other_work(group, reducer);
    not_finite_numbers_stay_so(group, reducer);
    sums_of_two_are_plain(group, reducer, rounding);
    let digest = sums_of_awkward_numbers_have_equal_bits_everywhere(group, reducer, rounding);
    cut_into_buckets_they_have_equal_bits_everywhere(group, reducer);
    digest
}

/// Small integers have exact sums in any order: up to eight of these are at most 256, which bf16 holds too.
fn number(i: usize, rank: usize) -> f32 {
    ((i * 37 + rank * 7) % 33) as f32
}

fn numbers(length: usize, rank: usize) -> Vec<f32> {
    (0..length).map(|i| number(i, rank)).collect()
}

fn assert_sums(values: &[f32], world: usize) {
    for (i, &value) in values.iter().enumerate() {
        let expected: f32 = (0..world).map(|rank| number(i, rank)).sum();
        assert_eq!(value, expected, "element {i} of {}", values.len());
    }
}

/// A bucket of `values`, which outlive it.
fn bucket(values: &mut [f32]) -> Bucket {
    // SAFETY: the callers touch `values` only after the reduction was awaited or dropped.
    unsafe { Bucket::host(values.as_mut_ptr(), values.len()) }
}

/// The elements of 1 MiB.
const MIB: usize = 1 << 18;

/// Up to where a backend may sum in another way.
const SMALL: usize = 8192;

fn sums_are_exact_where_numbers_are(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    for length in [0, 1, 2, 7, 1001, SMALL - 1, SMALL, SMALL + 1, MIB - 1, MIB, MIB + 1, 2 * MIB + 1, 1_000_003] {
        let mut values = numbers(length, group.rank());
        all_reduce(reducer, &mut values, None).unwrap();
        assert_sums(&values, group.world());
    }
}

fn sums_in_double_precision(group: &mut dyn Group) {
    // 2^40 + 1 per rank: f32 would lose the ones.
    let mut values = [(1u64 << 40) as f64 + 1.0, group.rank() as f64];
    group.all_reduce_sum_f64(&mut values).unwrap();
    let world = group.world() as f64;
    assert_eq!(values, [world * ((1u64 << 40) as f64 + 1.0), world * (world - 1.0) / 2.0]);
}

fn broadcasts_replace_whatever_was_there(group: &mut dyn Group) {
    for root in 0..group.world() {
        let message: Vec<u8> = (0..1000 * root + 5).map(|i| (i % 251) as u8).collect();
        let mut bytes = if group.rank() == root { message.clone() } else { vec![9; group.rank() * 100] };
        group.broadcast_bytes(&mut bytes, root).unwrap();
        assert_eq!(bytes, message);
    }
}

fn gathers_keep_rank_order_and_lengths(group: &mut dyn Group) {
    for root in 0..group.world() {
        let of = |rank: usize| vec![rank as u8; rank * 70_000 + 1];
        let gathered = group.gather_bytes(&of(group.rank()), root).unwrap();
        assert_eq!(gathered.is_some(), group.rank() == root);
        if let Some(all) = gathered {
            assert_eq!(all, (0..group.world()).map(of).collect::<Vec<_>>());
        }
    }
}

fn empty_operations_pass(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    all_reduce(reducer, &mut [], None).unwrap();
    // SAFETY: there is nothing at the address that could be touched.
    let nowhere = unsafe { Bucket::host(std::ptr::null_mut(), 0) };
    reducer.start(nowhere).unwrap().wait(None).unwrap();
    group.all_reduce_sum_f64(&mut []).unwrap();
    let mut bytes = Vec::new();
    group.broadcast_bytes(&mut bytes, 0).unwrap();
    assert!(bytes.is_empty());
    let gathered = group.gather_bytes(&[], 0).unwrap();
    assert!(gathered.is_none_or(|all| all.iter().all(Vec::is_empty)));
}

fn a_root_outside_the_world_is_refused(group: &mut dyn Group) {
    let root = group.world();
    assert!(matches!(group.gather_bytes(&[], root), Err(Error::Mismatch { .. })));
    assert!(matches!(group.broadcast_bytes(&mut Vec::new(), root), Err(Error::Mismatch { .. })));
}

fn barriers_hold_until_all_have_come(group: &mut dyn Group) {
    let late = Duration::from_millis(100);
    let start = Instant::now();
    if group.rank() == 0 {
        std::thread::sleep(late);
    }
    group.barrier().unwrap();
    // The ranks have not started together; only rank 0 knows for how long the others had to wait.
    assert!(group.rank() != 0 || start.elapsed() >= late);
}

/// Four buckets are started in one order everywhere, and awaited in the other order on every second rank; the ranks agree on
/// something while they are under way, some of them after they have awaited a bucket.
fn buckets_may_be_under_way_together(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let (rank, world) = (group.rank(), group.world());
    let mut values = numbers(10_000, rank);
    let mut pending: Vec<_> = values.chunks_mut(3_000).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    assert_eq!(pending.len(), 4);
    if rank % 2 == 1 {
        pending.reverse();
        pending.pop().into_iter().for_each(|pending| pending.wait(None).unwrap());
    }
    let mut word = [1.0];
    group.all_reduce_sum_f64(&mut word).unwrap();
    assert_eq!(word, [world as f64]);
    let far = Instant::now() + Duration::from_secs(30);
    pending.into_iter().for_each(|pending| pending.wait(Some(far)).unwrap());
    assert_sums(&values, world);
}

fn a_bucket_changes_nothing_beside_it(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = numbers(1000, group.rank());
    let before = values.clone();
    reducer.start(bucket(&mut values[301..703])).unwrap().wait(None).unwrap();
    assert_eq!(values[..301], before[..301]);
    assert_eq!(values[703..], before[703..]);
    assert!((301..703).all(|i| values[i] == (0..group.world()).map(|rank| number(i, rank)).sum::<f32>()));
}

fn a_device_is_refused(reducer: &mut dyn Reducer) {
    // SAFETY: nobody reads there.
    let elsewhere = unsafe { Bucket::device(std::ptr::dangling_mut(), 8, 3) };
    let refused = reducer.start(elsewhere).err().unwrap();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
    assert_eq!(refused.to_string(), format!("{} cannot reduce a bucket in the memory of device 3", reducer.name()));
}

/// A rank that is late, but not too late.
fn a_deadline_that_is_kept_changes_nothing(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    if group.rank() == 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut values = numbers(50_000, group.rank());
    all_reduce(reducer, &mut values, Some(Instant::now() + Duration::from_secs(30))).unwrap();
    assert_sums(&values, group.world());
}

/// What a rank sees that waits for one that never comes; all but the last rank call it, and the group is of no use after it.
#[allow(dead_code, reason = "one backend's tests may have another way to see it")]
pub fn a_rank_that_never_comes_is_noticed(ends: &mut Endpoints) {
    let mut values = numbers(1000, 0);
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let failed = all_reduce(&mut *ends.reducer, &mut values, Some(start + limit)).unwrap_err();
    let last = ends.group.world() - 1;
    assert!(matches!(&failed, Error::Deadline { missing, .. } if *missing == [last]), "{failed}");
    let took = start.elapsed();
    assert!(took >= limit && took < Duration::from_secs(10), "noticed after {took:?}");
    assert_eq!(values, numbers(1000, 0), "nothing was changed");
}

/// Three buckets of 1 MiB, which are complete before anybody waits for them.
fn a_bucket_is_summed_beside_other_work(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = numbers(3 * MIB, group.rank());
    let pending: Vec<_> = values.chunks_mut(MIB).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    group.barrier().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let past = Instant::now();
    pending.into_iter().for_each(|pending| pending.wait(Some(past)).unwrap());
    assert_sums(&values, group.world());
}

fn not_finite_numbers_stay_so(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    for length in [3, 2 * SMALL] {
        let mut values = vec![1.0; length];
        if group.rank() == 0 {
            (values[0], values[length - 1]) = (f32::NAN, f32::INFINITY);
        }
        all_reduce(reducer, &mut values, None).unwrap();
        assert!(values[0].is_nan() && values[length - 1] == f32::INFINITY && values[1] == group.world() as f32);
    }
}

/// Two f32 have one sum, whoever adds them.
fn sums_of_two_are_plain(group: &mut dyn Group, reducer: &mut dyn Reducer, rounding: f64) {
    if group.world() != 2 || rounding != F32 {
        return;
    }
    for length in [SMALL, 5 * SMALL + 1] {
        let mut values = awkward(length, group.rank());
        all_reduce(reducer, &mut values, None).unwrap();
        let plain = awkward(length, 0).into_iter().zip(awkward(length, 1)).map(|(a, b)| a + b);
        assert!(values.iter().zip(plain).all(|(sum, plain)| sum.to_bits() == plain.to_bits()));
    }
}

/// One bucket of 100 MB; a job of its own, because it takes a second.
#[allow(dead_code, reason = "one backend's tests may leave it out")]
pub fn a_hundred_megabytes(ends: &mut Endpoints) {
    let mut values = numbers(25_000_000, ends.group.rank());
    all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    // The numbers repeat after 33.
    assert_sums(&values[..33], ends.group.world());
    assert!(values[33..].iter().zip(&values).all(|(value, before)| value == before));
}

/// Numbers of both signs and very different sizes, whose sum depends on the order.
fn awkward(length: usize, rank: usize) -> Vec<f32> {
    let scale: [f32; 17] = std::array::from_fn(|power| 10f32.powi(power as i32 - 8));
    let number = |i: usize| {
        let mixed = (i as u64 * 0x9e37_79b9 + rank as u64 * 0x85eb_ca6b) % 16_777_213;
        (mixed as f32 - 8e6) * scale[(mixed % 17) as usize]
    };
    (0..length).map(number).collect()
}

/// Asserts that `values` are the sums of [`awkward`] numbers over all ranks: each term and each partial sum is rounded once.
fn assert_near(values: &[f32], world: usize, rounding: f64) {
    let terms: Vec<_> = (0..world).map(|rank| awkward(values.len(), rank)).collect();
    for (i, &value) in values.iter().enumerate() {
        let numbers = terms.iter().map(|terms| f64::from(terms[i]));
        let (sum, sizes) = numbers.fold((0.0, 0.0), |(sum, sizes), number| (sum + number, sizes + number.abs()));
        let error = (f64::from(value) - sum).abs();
        assert!(error <= 1.01 * world as f64 * rounding * sizes, "element {i}: {value} in place of {sum}");
    }
}

/// Asserts that all ranks have the same bits, and adds them to `digest`.
fn same_everywhere(group: &mut dyn Group, values: &[f32], digest: &mut u64) {
    for value in values {
        *digest = (*digest ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3);
    }
    let all = group.gather_bytes(&digest.to_le_bytes(), 0).unwrap();
    assert!(all.is_none_or(|all| all.iter().all(|other| *other == digest.to_le_bytes())), "ranks got different bits");
}

/// Two runs must agree, bit for bit.
fn sums_of_awkward_numbers_have_equal_bits_everywhere(
    group: &mut dyn Group,
    reducer: &mut dyn Reducer,
    rounding: f64,
) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for length in [3, 1001, 65_537, MIB + 1] {
        let [mut first, mut second] = [(); 2].map(|()| awkward(length, group.rank()));
        all_reduce(reducer, &mut first, None).unwrap();
        all_reduce(reducer, &mut second, None).unwrap();
        assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_near(&first, group.world(), rounding);
        same_everywhere(group, &first, &mut digest);
    }
    digest
}

fn cut_into_buckets_they_have_equal_bits_everywhere(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = awkward(165_537, group.rank());
    let pending: Vec<_> = values.chunks_mut(17_001).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
    same_everywhere(group, &values, &mut 0);
}
