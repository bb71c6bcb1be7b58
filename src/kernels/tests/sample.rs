//! Tests of drawn tokens: every implementation compared with the host, and the host with the softmax.

use tch::Tensor;

use super::{RandomValues, emulated, reference};
use crate::kernels::*;

const KEY: Key = Key::new(7).with(3);

fn draw(kernels: &dyn Kernels, logits: &Tensor, samples: &Tensor, positions: &Tensor) -> Vec<i64> {
    Vec::try_from(kernels.sample_tokens(logits, &TokenDraws { key: KEY, samples, positions })).unwrap()
}

/// Logits of `rows` rows, and the places of the rows.
fn rows(rows: i64, width: i64, kind: Kind) -> [Tensor; 3] {
    let values = RandomValues::new(9).values(&[("logits", (rows * width) as usize, true)], 6.0);
    let logits = Host.upload(Values::F32(&values)).view([rows, width]).to_kind(kind);
    let places: Vec<i64> = (0..rows).collect();
    let place = Tensor::from_slice(&places);
    [logits, place.divide_scalar_mode(5, "floor") * 1_000_003, place.remainder(5)]
}

#[test]
fn all_devices_draw_the_same_tokens() {
    for width in [1, 2, 5, 511, 512, 513, 2_000] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let [logits, samples, positions] = rows(40, width, kind);
            // Padding entries of the vocabulary are never drawn.
            let _ = logits.narrow(1, width - width / 4, width / 4).fill_(f64::NEG_INFINITY);
            let host = draw(&Host, &logits, &samples, &positions);
            assert_eq!(host, draw(&reference(), &logits, &samples, &positions), "{width} {kind:?}");
            assert_eq!(host, draw(&emulated(), &logits, &samples, &positions), "{width} {kind:?}");
            assert!(host.iter().all(|id| (0..width - width / 4).contains(id)), "{width} {kind:?}");
        }
    }
}

/// The first columns of wider rows, as those before the padding of a vocabulary.
#[test]
fn a_view_of_columns_gives_the_same_tokens() {
    for (count, width, padding) in [(40, 1003, 5), (1, 7, 1), (3, 512, 64)] {
        let [logits, samples, positions] = rows(count, width + padding, Kind::BFloat16);
        let _ = logits.narrow(1, width, padding).fill_(1e4);
        let view = logits.narrow(1, 0, width);
        let expected = draw(&Host, &view.contiguous(), &samples, &positions);
        for kernels in [&reference() as &dyn Kernels, &emulated()] {
            assert_eq!(draw(kernels, &view, &samples, &positions), expected);
        }
    }
}

#[test]
fn a_draw_depends_only_on_its_place() {
    let [logits, samples, positions] = rows(40, 300, Kind::Float);
    let all = draw(&Host, &logits, &samples, &positions);
    for row in [0, 7, 39] {
        let [logits, samples, positions] = [&logits, &samples, &positions].map(|tensor| tensor.narrow(0, row, 1));
        assert_eq!(draw(&Host, &logits, &samples, &positions), [all[row as usize]]);
    }
    let same = logits.narrow(0, 0, 1).expand([40, 300], false).contiguous();
    let drawn: std::collections::BTreeSet<i64> = draw(&Host, &same, &samples, &positions).into_iter().collect();
    assert!(drawn.len() > 2, "each row has its own noise: {drawn:?}");
}

/// Counts of four million draws, within four standard deviations of the probabilities.
#[test]
fn draws_follow_the_softmax() {
    const DRAWS: i64 = 1 << 22;
    let logits: [f32; 6] = [2.0, 1.0, 1.0, -3.0, -9.0, -13.0];
    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    let logits = Tensor::from_slice(&logits);
    let place = Tensor::from_slice(&[1_i64]).expand([DRAWS], false).cumsum(0, Kind::Int64);
    let rows = logits.view([1, 6]).expand([DRAWS, 6], false).contiguous();
    let drawn = Host.sample_tokens(&rows, &TokenDraws { key: KEY, samples: &place, positions: &place.zeros_like() });
    let counts: Vec<i64> = Vec::try_from(drawn.bincount(None::<Tensor>, 6)).unwrap();
    for (count, logit) in counts.iter().zip(Vec::<f32>::try_from(logits).unwrap()) {
        let share = f64::from(logit).exp() / sum;
        let (expected, deviation) = (DRAWS as f64 * share, (DRAWS as f64 * share * (1.0 - share)).sqrt());
        assert!((*count as f64 - expected).abs() < 4.0 * deviation, "{logit}: {count}, expected {expected:.1}");
    }
}

/// Draws between two tokens, of which the second has a share of 1e-6. It arrives first only with a uniform number near 1e-6. The
/// smallest number of 16 bits, 7.6e-6, would reduce the count to less than a hundredth.
#[test]
fn rare_tokens_need_32_bits() {
    const SHARE: f64 = 1e-6;
    const ROWS: i64 = 1 << 22;
    let logits = Tensor::from_slice(&[0.0, (SHARE / (1.0 - SHARE)).ln() as f32]);
    let rows = logits.view([1, 2]).expand([ROWS, 2], false).contiguous();
    let samples = Tensor::from_slice(&[1_i64]).expand([ROWS], false).cumsum(0, Kind::Int64);
    let count = |position: i64| {
        let positions = samples.zeros_like() + position;
        let drawn = Host.sample_tokens(&rows, &TokenDraws { key: KEY, samples: &samples, positions: &positions });
        drawn.sum(Kind::Int64).int64_value(&[])
    };
    let (count, expected) = ((0..4).map(count).sum::<i64>() as f64, (4 * ROWS) as f64 * SHARE);
    assert!(count > expected / 3.0 && count < 2.0 * expected, "{count}, expected {expected:.1}");
}

/// Logits that are not numbers give a token of the vocabulary, so that later operations do not fail.
#[test]
fn undefined_logits_give_a_valid_token() {
    let logits = Tensor::from_slice(&[f32::NAN; 12]).view([2, 6]);
    let place = Tensor::from_slice(&[0_i64, 1]);
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        assert!(draw(kernels, &logits, &place, &place).iter().all(|id| (0..6).contains(id)));
    }
}
