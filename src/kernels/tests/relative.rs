//! Tests of attention weights with relative positions: the emulated GPU compared with libtorch.

use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;
use crate::model::relative;

/// Attention weights, and the gradients of the three scores, for `[batch, heads, length]`. All inputs are rounded to the second of
/// the dtypes, and the computation uses the first.
fn results(
    [batch, heads, length]: [i64; 3],
    [kind, rounded]: [Kind; 2],
    [masks, drops]: [bool; 2],
    kernels: Option<&dyn Kernels>,
) -> [Tensor; 4] {
    let values = |seed: u64, shape: &[i64]| {
        let count = shape.iter().product::<i64>() as usize;
        let values = RandomValues::new(seed).values(&[("x", count, true)], 6.0);
        Host.upload(Values::F32(&values)).view(shape)
    };
    let shapes = [vec![batch, heads, length, length], vec![heads, batch * length, 2 * length - 1]];
    let [contents, queries, keys] = [(1, 0), (2, 1), (3, 1)].map(|(seed, shape): (u64, usize)| {
        values(seed, &shapes[shape]).to_kind(rounded).to_kind(kind).set_requires_grad(true)
    });
    let samples = Tensor::from_slice(&(0..batch).map(|sample| 7 * sample).collect::<Vec<_>>());
    let params = DropoutParams { key: Key::new(5), samples: &samples, positions: None, threshold: 20_000, scale: 1.4 };
    let dropout = drops.then_some(&params);
    // The last key of each sample is padding.
    let mask = Tensor::ones([batch, 1, 1, length], (Kind::Bool, tch::Device::Cpu));
    let _ = mask.narrow(3, length - 1, 1).fill_(0);
    let mask = masks.then_some(&mask);
    let scores = RelativeScores { contents: &contents, queries: &queries, keys: &keys };
    let out = match kernels {
        Some(kernels) => kernels.relative_softmax(&scores, mask, dropout),
        None => {
            let weights = relative::softmax(&scores, mask);
            dropout.map_or_else(|| weights.shallow_clone(), |params| Host.dropout(&weights, None, params))
        }
    };
    (&out * values(4, &shapes[0]).to_kind(rounded).to_kind(kind)).sum(Kind::Float).backward();
    [out.detach(), contents.grad(), queries.grad(), keys.grad()].map(|tensor| tensor.to_kind(Kind::Float))
}

#[test]
fn the_kernel_computes_as_single_operations_do() {
    for shape in [[2, 3, 5], [1, 2, 40], [2, 1, 130], [3, 2, 2], [1, 1, 512], [1, 1, 1001]] {
        for (kind, most) in [(Kind::Float, 2e-6), (Kind::BFloat16, 1e-2)] {
            for options in [[false, false], [true, false], [false, true], [true, true]] {
                let kernels = emulated();
                assert!(kernels.has_relative_softmax(shape[2]));
                let expected = results(shape, [Kind::Float, kind], options, None);
                let found = results(shape, [kind; 2], options, Some(&kernels));
                for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    let largest = expected.abs().max().double_value(&[]).max(1e-3);
                    let difference = (expected - found).abs().max().double_value(&[]) / largest;
                    assert!(difference < most, "{index}: {shape:?} {kind:?} {options:?}: {difference:e}");
                }
            }
        }
    }
    assert!(!emulated().has_relative_softmax(1025));
}
