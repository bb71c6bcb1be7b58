//! Tests of rotary positions: the emulated GPU compared with libtorch.

use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;
use crate::model::rotation::Rotation;

/// Rotated queries, keys and values, and the gradient of `query_key_value`.
fn results(shape: &[i64], kind: Kind, kernels: Option<&dyn Kernels>) -> [Tensor; 2] {
    let count = shape.iter().product::<i64>() as usize;
    let values = |seed: u64| {
        let values = RandomValues::new(seed).values(&[("x", count, true)], 4.0);
        Host.upload(Values::F32(&values)).view(shape)
    };
    let positions = Tensor::from_slice(&(0..shape[1]).map(|place| 3 * place + 1).collect::<Vec<_>>());
    let elements = Tensor::from_slice(&(0..shape[4] / 2).collect::<Vec<_>>());
    let rotation = Rotation::new(&positions, &elements, 10_000.0);
    let x = values(1).to_kind(kind).set_requires_grad(true);
    let out = match kernels {
        Some(kernels) => kernels.rotate(&x, rotation.angles()),
        None => {
            let parts = x.unbind(2);
            Tensor::stack(&[rotation.apply(&parts[0]), rotation.apply(&parts[1]), parts[2].shallow_clone()], 2)
        }
    };
    (&out * values(2).to_kind(kind)).sum(Kind::Float).backward();
    [out.detach(), x.grad()].map(|tensor| tensor.to_kind(Kind::Float))
}

#[test]
fn the_kernel_rotates_as_single_operations_do() {
    for shape in [[2, 5, 3, 2, 16], [1, 21, 3, 3, 64], [3, 1, 3, 1, 8]] {
        for (kind, most) in [(Kind::Float, 1e-6), (Kind::BFloat16, 1e-2)] {
            let kernels = emulated();
            assert!(kernels.has_rotation(shape[4]));
            let (expected, found) = (results(&shape, kind, None), results(&shape, kind, Some(&kernels)));
            for (expected, found) in expected.iter().zip(&found) {
                let difference = (expected - found).abs().max() / expected.abs().max();
                let difference = difference.double_value(&[]);
                assert!(difference < most, "{shape:?} {kind:?}: {difference:e}");
            }
        }
    }
    assert!(!emulated().has_rotation(20));
}
