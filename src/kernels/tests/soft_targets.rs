//! Tests of soft targets: the emulated GPU compared with single libtorch operations.

use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;

/// Loss and gradient with `kernels`, for rows of logits of a student and of a teacher with other padding.
fn results(
    kernels: &dyn Kernels,
    kind: Kind,
    [rows, vocabulary]: [i64; 2],
    padding: [i64; 2],
    weighs: bool,
) -> [Tensor; 2] {
    let values = |seed: u64, width: i64| {
        let values = RandomValues::new(seed).values(&[("x", (rows * width) as usize, true)], 20.0);
        Host.upload(Values::F32(&values)).view([rows, width])
    };
    let [student, teacher] = [0, 1].map(|index| {
        let logits = values(index as u64 + 1, vocabulary + padding[index]);
        let _ = logits.narrow(1, vocabulary, padding[index]).fill_(if index == 0 { f64::NEG_INFINITY } else { 7.0 });
        logits.to_kind(kind)
    });
    let weights = (values(3, 1).squeeze_dim(1) * 0.1).abs();
    let params = SoftTargetParams { vocabulary, temperature: 2.0, weights: weighs.then_some(&weights) };
    let SoftTargetGradient { loss, gradient } = kernels.soft_targets([&student, &teacher], &params);
    assert_eq!(gradient.size(), student.size());
    let gradient = gradient.to_kind(Kind::Float);
    assert_eq!(gradient.narrow(1, vocabulary, padding[0]).abs().sum(Kind::Float).double_value(&[]), 0.0);
    [loss, gradient]
}

#[test]
fn the_kernel_computes_as_single_operations_do() {
    for (shape, padding) in
        [([3, 1000], [0, 0]), ([2, 1003], [5, 1]), ([5, 7], [1, 2]), ([4, 1001], [0, 7]), ([1, 3], [61, 0])]
    {
        for (kind, most) in [(Kind::Float, 2e-6), (Kind::BFloat16, 5e-3)] {
            for weighs in [true, false] {
                let expected = results(&Host, kind, shape, padding, weighs);
                let found = results(&emulated(), kind, shape, padding, weighs);
                for (expected, found) in expected.iter().zip(&found) {
                    let difference = (expected - found).abs().max() / expected.abs().max();
                    let difference = difference.double_value(&[]);
                    assert!(difference < most, "{shape:?} {padding:?} {kind:?}: {difference:e}");
                }
            }
        }
    }
}

#[test]
fn equal_distributions_have_no_loss_and_no_gradient() {
    let logits = || Tensor::from_slice(&[0.5_f32, -2.0, 30.0, 1.0]).view([1, 4]);
    let params = SoftTargetParams { vocabulary: 4, temperature: 2.0, weights: None };
    for kernels in [&Host as &dyn Kernels, &emulated()] {
        let SoftTargetGradient { loss, gradient } = kernels.soft_targets([&logits(), &(logits() + 3.0)], &params);
        assert!(loss.double_value(&[]).abs() < 1e-6 && gradient.abs().max().double_value(&[]) < 1e-6);
    }
}
