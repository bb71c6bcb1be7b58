//! Conformance suite that every backend must pass. All ranks of a group call [`run_all_checks`] concurrently.

use std::time::{Duration, Instant};

use lambert_collective::{Bucket, Endpoints, Error, Group, Reducer, all_reduce};

/// Maximum relative rounding error of a term or partial sum with f32 on the wire.
pub const F32: f64 = 1.0 / (1 << 24) as f64;

/// Maximum relative rounding error of a term or partial sum with bf16 on the wire.
#[allow(dead_code, reason = "not supported by every backend")]
pub const BF16: f64 = 1.0 / (1 << 8) as f64;

/// Runs all checks. Returns a digest of the bits of all sums, which must be equal on all ranks and in every run.
/// `rounding` is the relative rounding error of the wire format.
pub fn run_all_checks(endpoints: &mut Endpoints, rounding: f64) -> u64 {
    let (group, reducer) = (&mut *endpoints.group, &mut *endpoints.reducer);
    assert!(group.rank() < group.world_size());
    assert!([group.name(), "nccl"].contains(&reducer.name()));
    sums_of_small_integers_are_exact(group, reducer);
    f64_sums_have_double_precision(group);
    broadcasts_replace_bytes_of_any_length(group);
    gathers_keep_rank_order_and_lengths(group);
    all_gathers_keep_rank_order_and_lengths(group);
    empty_operations_succeed(group, reducer);
    a_root_outside_the_world_is_rejected(group);
    barriers_wait_for_all_ranks(group);
    several_buckets_may_be_in_flight(group, reducer);
    values_outside_a_bucket_stay_unchanged(group, reducer);
    device_memory_is_rejected(reducer);
    a_deadline_in_the_future_has_no_effect(group, reducer);
    buckets_are_summed_in_the_background(group, reducer);
    non_finite_values_are_preserved(group, reducer);
    sums_of_two_ranks_are_plain_f32_sums(group, reducer, rounding);
    let digest = order_dependent_sums_are_bitwise_equal_on_all_ranks(group, reducer, rounding);
    bucketed_sums_are_bitwise_equal_on_all_ranks(group, reducer);
    digest
}

/// Returns a small integer. Sums of such integers are exact in any order. Sums over up to eight ranks are at most 256,
/// so they are exact in bf16, too.
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

/// Creates a bucket of `values`, which must outlive it.
fn bucket(values: &mut [f32]) -> Bucket {
    // SAFETY: callers access `values` only after the all-reduce has been waited for or dropped.
    unsafe { Bucket::host(values.as_mut_ptr(), values.len()) }
}

/// Number of f32 values in 1 MiB.
const MIB: usize = 1 << 18;

/// Maximum length of the buckets for which a backend may use another algorithm.
const SMALL: usize = 8192;

fn sums_of_small_integers_are_exact(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    for length in [0, 1, 2, 7, 1001, SMALL - 1, SMALL, SMALL + 1, MIB - 1, MIB, MIB + 1, 2 * MIB + 1, 1_000_003] {
        let mut values = numbers(length, group.rank());
        all_reduce(reducer, &mut values, None).unwrap();
        assert_sums(&values, group.world_size());
    }
}

fn f64_sums_have_double_precision(group: &mut dyn Group) {
    // 2^40 + 1 per rank is not representable in f32.
    let mut values = [(1u64 << 40) as f64 + 1.0, group.rank() as f64];
    group.all_reduce_sum_f64(&mut values).unwrap();
    let world = group.world_size() as f64;
    assert_eq!(values, [world * ((1u64 << 40) as f64 + 1.0), world * (world - 1.0) / 2.0]);
}

fn broadcasts_replace_bytes_of_any_length(group: &mut dyn Group) {
    for root in 0..group.world_size() {
        let message: Vec<u8> = (0..1000 * root + 5).map(|i| (i % 251) as u8).collect();
        let mut bytes = if group.rank() == root { message.clone() } else { vec![9; group.rank() * 100] };
        group.broadcast_bytes(&mut bytes, root).unwrap();
        assert_eq!(bytes, message);
    }
}

fn gathers_keep_rank_order_and_lengths(group: &mut dyn Group) {
    for root in 0..group.world_size() {
        let message = |rank: usize| vec![rank as u8; rank * 70_000 + 1];
        let gathered = group.gather_bytes(&message(group.rank()), root).unwrap();
        assert_eq!(gathered.is_some(), group.rank() == root);
        if let Some(all) = gathered {
            assert_eq!(all, (0..group.world_size()).map(message).collect::<Vec<_>>());
        }
    }
}

fn all_gathers_keep_rank_order_and_lengths(group: &mut dyn Group) {
    for scale in [0, 1, 70_000, 3 << 20] {
        let message = |rank: usize| vec![rank as u8; rank * scale + 1];
        let gathered = group.all_gather_bytes(message(group.rank())).unwrap();
        assert_eq!(gathered, (0..group.world_size()).map(message).collect::<Vec<_>>());
    }
}

fn empty_operations_succeed(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    all_reduce(reducer, &mut [], None).unwrap();
    // SAFETY: the bucket is empty, so the address is never accessed.
    let empty = unsafe { Bucket::host(std::ptr::null_mut(), 0) };
    reducer.start(empty).unwrap().wait(None).unwrap();
    group.all_reduce_sum_f64(&mut []).unwrap();
    let mut bytes = Vec::new();
    group.broadcast_bytes(&mut bytes, 0).unwrap();
    assert!(bytes.is_empty());
    let gathered = group.gather_bytes(&[], 0).unwrap();
    assert!(gathered.is_none_or(|all| all.iter().all(Vec::is_empty)));
    assert!(group.all_gather_bytes(Vec::new()).unwrap().iter().all(Vec::is_empty));
}

fn a_root_outside_the_world_is_rejected(group: &mut dyn Group) {
    let root = group.world_size();
    assert!(matches!(group.gather_bytes(&[], root), Err(Error::Mismatch { .. })));
    assert!(matches!(group.broadcast_bytes(&mut Vec::new(), root), Err(Error::Mismatch { .. })));
}

fn barriers_wait_for_all_ranks(group: &mut dyn Group) {
    let late = Duration::from_millis(100);
    let start = Instant::now();
    if group.rank() == 0 {
        std::thread::sleep(late);
    }
    group.barrier().unwrap();
    // The ranks start at different times, so only rank 0 can check the duration.
    assert!(group.rank() != 0 || start.elapsed() >= late);
}

/// Starts four buckets in the same order on all ranks. Every second rank waits for the buckets in a different order. An
/// f64 all-reduce runs while the buckets are in flight.
fn several_buckets_may_be_in_flight(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let (rank, world) = (group.rank(), group.world_size());
    let mut values = numbers(10_000, rank);
    let mut pending: Vec<_> = values.chunks_mut(3_000).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    assert_eq!(pending.len(), 4);
    if rank % 2 == 1 {
        pending.reverse();
        pending.pop().into_iter().for_each(|pending| pending.wait(None).unwrap());
    }
    let mut sum = [1.0];
    group.all_reduce_sum_f64(&mut sum).unwrap();
    assert_eq!(sum, [world as f64]);
    let far = Instant::now() + Duration::from_secs(30);
    pending.into_iter().for_each(|pending| pending.wait(Some(far)).unwrap());
    assert_sums(&values, world);
}

fn values_outside_a_bucket_stay_unchanged(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = numbers(1000, group.rank());
    let before = values.clone();
    reducer.start(bucket(&mut values[301..703])).unwrap().wait(None).unwrap();
    assert_eq!(values[..301], before[..301]);
    assert_eq!(values[703..], before[703..]);
    assert!((301..703).all(|i| values[i] == (0..group.world_size()).map(|rank| number(i, rank)).sum::<f32>()));
}

fn device_memory_is_rejected(reducer: &mut dyn Reducer) {
    // SAFETY: the reducer rejects the bucket, so the address is never accessed.
    let on_device = unsafe { Bucket::device(std::ptr::dangling_mut(), 8, 3) };
    let error = reducer.start(on_device).err().unwrap();
    assert!(matches!(error, Error::UnsupportedLocation { .. }), "{error}");
    assert_eq!(error.to_string(), format!("{} cannot all-reduce a bucket in the memory of device 3", reducer.name()));
}

/// One rank is late, but arrives before the deadline.
fn a_deadline_in_the_future_has_no_effect(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    if group.rank() == 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut values = numbers(50_000, group.rank());
    all_reduce(reducer, &mut values, Some(Instant::now() + Duration::from_secs(30))).unwrap();
    assert_sums(&values, group.world_size());
}

/// Checks that waiting for a rank that never arrives fails at the deadline. All ranks except the last call this
/// function. The group is unusable afterwards.
#[allow(dead_code, reason = "not used by every test program")]
pub fn a_rank_that_never_arrives_is_detected(endpoints: &mut Endpoints) {
    let mut values = numbers(1000, 0);
    let start = Instant::now();
    let limit = Duration::from_millis(300);
    let error = all_reduce(&mut *endpoints.reducer, &mut values, Some(start + limit)).unwrap_err();
    let last = endpoints.group.world_size() - 1;
    assert!(matches!(&error, Error::Deadline { missing, .. } if *missing == [last]), "{error}");
    let took = start.elapsed();
    assert!(took >= limit && took < Duration::from_secs(10), "detected after {took:?}");
    assert_eq!(values, numbers(1000, 0), "the values are unchanged");
}

/// Three buckets of 1 MiB complete before any rank waits for them.
fn buckets_are_summed_in_the_background(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = numbers(3 * MIB, group.rank());
    let pending: Vec<_> = values.chunks_mut(MIB).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    group.barrier().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let past = Instant::now();
    pending.into_iter().for_each(|pending| pending.wait(Some(past)).unwrap());
    assert_sums(&values, group.world_size());
}

fn non_finite_values_are_preserved(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    for length in [3, 2 * SMALL] {
        let mut values = vec![1.0; length];
        if group.rank() == 0 {
            (values[0], values[length - 1]) = (f32::NAN, f32::INFINITY);
        }
        all_reduce(reducer, &mut values, None).unwrap();
        assert!(values[0].is_nan() && values[length - 1] == f32::INFINITY && values[1] == group.world_size() as f32);
    }
}

/// The sum of two f32 values does not depend on the order.
fn sums_of_two_ranks_are_plain_f32_sums(group: &mut dyn Group, reducer: &mut dyn Reducer, rounding: f64) {
    if group.world_size() != 2 || rounding != F32 {
        return;
    }
    for length in [SMALL, 5 * SMALL + 1] {
        let mut values = order_dependent_values(length, group.rank());
        all_reduce(reducer, &mut values, None).unwrap();
        let plain =
            order_dependent_values(length, 0).into_iter().zip(order_dependent_values(length, 1)).map(|(a, b)| a + b);
        assert!(values.iter().zip(plain).all(|(sum, plain)| sum.to_bits() == plain.to_bits()));
    }
}

/// Sums one bucket of 100 MB. Not part of [`run_all_checks`], because it takes a second.
#[allow(dead_code, reason = "not used by every test program")]
pub fn sum_100_megabytes(endpoints: &mut Endpoints) {
    let mut values = numbers(25_000_000, endpoints.group.rank());
    all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
    // The values repeat with period 33.
    assert_sums(&values[..33], endpoints.group.world_size());
    assert!(values[33..].iter().zip(&values).all(|(value, before)| value == before));
}

/// Values of both signs and very different magnitudes, whose sum depends on the order.
fn order_dependent_values(length: usize, rank: usize) -> Vec<f32> {
    let scale: [f32; 17] = std::array::from_fn(|power| 10f32.powi(power as i32 - 8));
    let number = |i: usize| {
        let mixed = (i as u64 * 0x9e37_79b9 + rank as u64 * 0x85eb_ca6b) % 16_777_213;
        (mixed as f32 - 8e6) * scale[(mixed % 17) as usize]
    };
    (0..length).map(number).collect()
}

/// Asserts that `values` are the sums of [`order_dependent_values`] over all ranks. Each term and each partial sum may
/// be rounded once.
fn assert_near(values: &[f32], world: usize, rounding: f64) {
    let terms: Vec<_> = (0..world).map(|rank| order_dependent_values(values.len(), rank)).collect();
    for (i, &value) in values.iter().enumerate() {
        let numbers = terms.iter().map(|terms| f64::from(terms[i]));
        let (sum, sizes) = numbers.fold((0.0, 0.0), |(sum, sizes), number| (sum + number, sizes + number.abs()));
        let error = (f64::from(value) - sum).abs();
        assert!(error <= 1.01 * world as f64 * rounding * sizes, "element {i}: {value}, expected {sum}");
    }
}

/// Adds the bits of `values` to `digest` and asserts that the digest is equal on all ranks.
fn assert_equal_on_all_ranks(group: &mut dyn Group, values: &[f32], digest: &mut u64) {
    for value in values {
        *digest = (*digest ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3);
    }
    let all = group.gather_bytes(&digest.to_le_bytes(), 0).unwrap();
    assert!(
        all.is_none_or(|all| all.iter().all(|other| *other == digest.to_le_bytes())),
        "the ranks have different bits"
    );
}

/// Checks sums whose bits depend on the order of the terms. A repeated sum must have the same bits, too.
fn order_dependent_sums_are_bitwise_equal_on_all_ranks(
    group: &mut dyn Group,
    reducer: &mut dyn Reducer,
    rounding: f64,
) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for length in [3, 1001, 65_537, MIB + 1] {
        let [mut first, mut second] = [(); 2].map(|()| order_dependent_values(length, group.rank()));
        all_reduce(reducer, &mut first, None).unwrap();
        all_reduce(reducer, &mut second, None).unwrap();
        assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_near(&first, group.world_size(), rounding);
        assert_equal_on_all_ranks(group, &first, &mut digest);
    }
    digest
}

fn bucketed_sums_are_bitwise_equal_on_all_ranks(group: &mut dyn Group, reducer: &mut dyn Reducer) {
    let mut values = order_dependent_values(165_537, group.rank());
    let pending: Vec<_> = values.chunks_mut(17_001).map(|part| reducer.start(bucket(part)).unwrap()).collect();
    pending.into_iter().for_each(|pending| pending.wait(None).unwrap());
    assert_equal_on_all_ranks(group, &values, &mut 0);
}
