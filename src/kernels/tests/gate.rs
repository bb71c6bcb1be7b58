//! Tests of gated activation functions: the emulated GPU compared with libtorch.

use lambert_config::run::Activation;
use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;
use crate::model;

/// The product, and the gradient of `x`.
fn results(shape: &[i64], kind: Kind, activation: Activation, kernels: Option<&dyn Kernels>) -> [Tensor; 2] {
    let count = shape.iter().product::<i64>() as usize;
    let values = |seed: u64| {
        let values = RandomValues::new(seed).values(&[("x", count, true)], 8.0);
        Host.upload(Values::F32(&values)).view(shape)
    };
    let x = values(1).to_kind(kind).set_requires_grad(true);
    let out = match kernels {
        Some(kernels) => kernels.gate(&x, activation),
        None => model::gated(&x, activation),
    };
    (&out * values(2).narrow(-1, 0, shape[2] / 2).to_kind(kind)).sum(Kind::Float).backward();
    [out.detach(), x.grad()].map(|tensor| tensor.to_kind(Kind::Float))
}

#[test]
fn the_kernel_gates_as_single_operations_do() {
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        for shape in [[2, 5, 16], [1, 21, 2304], [3, 1, 8]] {
            for (kind, most) in [(Kind::Float, 1e-6), (Kind::BFloat16, 1e-2)] {
                let kernels = emulated();
                assert!(kernels.has_gate(shape[2] / 2));
                let expected = results(&shape, kind, activation, None);
                let found = results(&shape, kind, activation, Some(&kernels));
                for (expected, found) in expected.iter().zip(&found) {
                    assert_eq!(expected.size(), found.size());
                    let difference = (expected - found).abs().max() / expected.abs().max();
                    let difference = difference.double_value(&[]);
                    assert!(difference < most, "{activation:?} {shape:?} {kind:?}: {difference:e}");
                }
            }
        }
    }
    assert!(!emulated().has_gate(6));
}
