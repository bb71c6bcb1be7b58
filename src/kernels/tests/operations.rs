//! Tests of dropout, digests, bf16 conversions and norms: every implementation compared with the host.

use tch::Tensor;

use super::{RandomValues, SHAPES, emulated, reference};
use crate::kernels::cuda::Emulator;
use crate::kernels::cuda::launch::{KernelArguments, KernelDevice, THREADS};
use crate::kernels::*;

#[test]
fn dropout_factors_are_bit_identical_on_all_devices() {
    for shape in [&[3, 7, 5][..], &[2, 4, 6, 9], &[1, 1, 1], &[5, 2, 16, 64]] {
        let samples: Vec<i64> = (0..shape[0]).map(|row| 1_000_003 * row + 7).collect();
        for (threshold, scale) in [(6554, 1.111_114), (1, 1.0), (65_535, 65536.0), (32_768, 2.0)] {
            let factors = |kernels: &dyn Kernels| {
                let samples = Tensor::from_slice(&samples);
                let params =
                    DropoutParams { key: Key::new(11).with(3), samples: &samples, positions: None, threshold, scale };
                let factors = kernels.dropout_factors(&params, shape);
                assert_eq!(factors.size(), shape);
                Vec::<f32>::try_from(factors.flatten(0, -1)).unwrap()
            };
            assert_eq!(factors(&Host), factors(&reference()), "{shape:?} {threshold}");
            assert_eq!(factors(&Host), factors(&emulated()), "{shape:?} {threshold}");
        }
    }
}

/// The tokens of an unpadded micro-batch have the masks that they have in a padded one.
#[test]
fn dropout_of_unpadded_tokens_matches_padded_rows() {
    let (lengths, width, length) = ([3, 1, 5], 5, 10);
    let tensor = |values: &[i64]| Tensor::from_slice(values);
    let rows = tensor(&[70_000, 2, 9]);
    let token = |of: &dyn Fn(usize, i64) -> i64| -> Vec<i64> {
        lengths
            .iter()
            .enumerate()
            .flat_map(|(row, count)| (0..*count).map(move |place| (row, place)))
            .map(|(row, place)| of(row, place))
            .collect()
    };
    let samples = tensor(&token(&|row, _| [70_000, 2, 9][row]));
    let positions = tensor(&token(&|_, place| place));
    let kept = tensor(&token(&|row, place| row as i64 * width + place));
    let params =
        |samples, positions| DropoutParams { key: Key::new(5), samples, positions, threshold: 20_000, scale: 1.5 };
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        let padded = Host.dropout_factors(&params(&rows, None), &[3, width, length]).view([-1, length]);
        let unpadded = kernels.dropout_factors(&params(&samples, Some(&positions)), &[1, 9, length]);
        assert_eq!(unpadded.squeeze_dim(0), padded.index_select(0, &kept));
    }
}

/// Covers the (shortened) activation shapes of the shipped models, shapes of attention weights,
/// and lengths that are not multiples of four.
#[test]
fn dropout_and_its_gradient_match_host_bits() {
    for shape in [&[2, 5, 128][..], &[1, 3, 768], &[1, 2, 1024], &[2, 4, 6, 11], &[1, 12, 3, 128]] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let values = |seed: u64| {
                let count = shape.iter().product::<i64>() as usize;
                let values = RandomValues::new(seed).values(&[("x", count, true)], 4.0);
                Host.upload(Values::F32(&values)).view(shape).to_kind(kind)
            };
            let samples = Tensor::from_slice(&[3_i64, 1 << 40][..shape[0] as usize]);
            let params = DropoutParams {
                key: Key::new(5).with(9),
                samples: &samples,
                positions: None,
                threshold: 6554,
                scale: 1.111_114,
            };
            let passes = |kernels: &dyn Kernels, adds: bool| {
                let (x, added) = (values(1).set_requires_grad(true), values(2).set_requires_grad(true));
                let y = kernels.dropout(&x, adds.then_some(&added), &params);
                (&y * values(3)).sum(Kind::Float).backward();
                [y, x.grad(), if adds { added.grad() } else { values(2) }].map(|tensor| tensor.detach())
            };
            assert_eq!(passes(&Host, false), passes(&emulated(), false), "{shape:?} {kind:?}");
            let ([.., theirs_x, theirs_added], [y, x, added]) = (passes(&Host, true), passes(&emulated(), true));
            assert_eq!((theirs_x, theirs_added), (x, added), "{shape:?} {kind:?}, added");
            // The fused kernel rounds once, and the host rounds twice.
            let host = passes(&Host, true)[0].to_kind(Kind::Float);
            let error = ((y.to_kind(Kind::Float) - &host) / (host.abs() + 1.0)).abs().max().double_value(&[]);
            assert!(error <= if kind == Kind::Float { 0.0 } else { 1.0 / 128.0 }, "{shape:?} {kind:?}: {error:e}");
        }
    }
}

#[test]
fn digests_match_and_detect_every_bit_flip() {
    let values = RandomValues::new(4).values(&SHAPES, 2.0);
    let digest_of = |kernels: &dyn Kernels, values: &[f32]| {
        let mut digest = [0; 8];
        kernels.read(&kernels.digest(&kernels.upload(Values::F32(values))), 0, &mut digest);
        u64::from_ne_bytes(digest)
    };
    for count in [1, 2, 3, 50, 1 << 16, (1 << 16) + 1, values.len()] {
        let values = &values[..count];
        let digest = digest_of(&Host, values);
        assert_eq!(digest, digest_of(&reference(), values), "{count}");
        assert_eq!(digest, digest_of(&emulated(), values), "{count}");
        for (index, bit) in [(0, 0), (count / 2, 31), (count - 1, 13)] {
            let mut other = values.to_vec();
            other[index] = f32::from_bits(other[index].to_bits() ^ 1 << bit);
            assert_ne!(digest, digest_of(&Host, &other), "{count}, bit {bit} at {index}");
        }
        if count > 2 {
            let mut other = values.to_vec();
            other.swap(0, 2);
            assert_ne!(digest, digest_of(&Host, &other), "{count}, swapped");
        }
    }
    assert_eq!(digest_of(&Host, &[]), 0);
    // Known values: the first outputs of splitmix64 are mix(STEP) and mix(2 * STEP).
    assert_eq!(digest_of(&Host, &[0.0]), 0xe220_a839_7b1d_cdaf);
    assert_eq!(digest_of(&Host, &[0.0; 4]), 0xe220_a839_7b1d_cdaf_u64.wrapping_add(0x6e78_9e6a_a1b9_65f4));
}

/// Launches the kernels as `CommStream` does.
#[test]
fn bf16_round_trip_matches_libtorch() {
    let device = Emulator::default();
    let mut values = RandomValues::new(8).values(&SHAPES, 2.0);
    values[..5].copy_from_slice(&[f32::NAN, f32::INFINITY, -0.0, f32::MAX, 1.0 + 3.0 / 256.0]);
    let (from, count) = (Host.upload(Values::F32(&values)), values.len());
    let (narrow, wide) = (Host.zeros(&[count as i64], Kind::BFloat16), Host.zeros(&[count as i64], Kind::Float));
    for (kernel, to, from) in [("to_bf16", &narrow, &from), ("from_bf16", &wide, &narrow)] {
        let mut arguments = KernelArguments::new().tensor(to).tensor(from).u64(count as u64);
        device.launch(kernel, count.div_ceil(THREADS), &mut arguments).unwrap();
    }
    let expected = from.to_kind(Kind::BFloat16).to_kind(Kind::Float);
    let [expected, wide] = [expected, wide].map(|tensor| Vec::<f32>::try_from(tensor).unwrap());
    assert!(wide[0].is_nan() && wide[1..] == expected[1..]);
}

#[test]
fn norms_match_host() {
    let values = RandomValues::new(3).values(&SHAPES, 2.0);
    let norm_of =
        |kernels: &dyn Kernels| kernels.fetch(&kernels.norm(&kernels.upload(Values::F32(&values))).view([1]))[0];
    assert!((norm_of(&Host) / norm_of(&reference()) - 1.0).abs() < 1e-12);
    assert!((norm_of(&Host) / norm_of(&emulated()) - 1.0).abs() < 1e-12);
    assert_eq!(norm_of(&Host), norm_of(&Host));
    // The emulator orders threads differently each time.
    assert_eq!(norm_of(&emulated()), norm_of(&emulated()));
}
