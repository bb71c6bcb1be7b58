//! Tests of the fused normalization of dropout(x) + residual: the emulated GPU compared with libtorch.

use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;
use crate::torch;

/// A parameter with a gradient buffer, as the flat buffers have them.
fn parameter(values: Tensor) -> (Tensor, Tensor) {
    let (parameter, gradient) = (values.set_requires_grad(true), values.zeros_like());
    torch::set_gradient(&parameter, &gradient);
    (parameter, gradient)
}

/// Largest difference relative to the largest value.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_kind(Kind::Double), b.to_kind(Kind::Double));
    ((&a - &b).abs().max() / a.abs().max()).double_value(&[])
}

/// Result and gradients: result, of x, of the residual, of weight, bias and linear bias.
type Results = [Tensor; 6];

/// Computes the operation with `kernels`, or with single libtorch operations if `kernels` is `None`.
fn results(shape: &[i64], kind: Kind, drops: bool, kernels: Option<&dyn Kernels>) -> Results {
    let count = shape.iter().product::<i64>() as usize;
    let values = |seed: u64| {
        let values = RandomValues::new(seed).values(&[("x", count, true)], 4.0);
        Host.upload(Values::F32(&values)).view(shape)
    };
    let row = |seed: u64| values(seed).view([-1, shape[2]]).select(0, 0).contiguous();
    let [x, residual] = [1, 2].map(|seed| values(seed).to_kind(kind).set_requires_grad(true));
    let [(weight, of_weight), (bias, of_bias), (linear, of_linear)] = [3, 4, 5].map(|seed| parameter(row(seed)));
    let samples = Tensor::from_slice(&(0..shape[0]).map(|sample| 7 * sample).collect::<Vec<_>>());
    let params = DropoutParams { key: Key::new(5), samples: &samples, positions: None, threshold: 20_000, scale: 1.4 };
    let dropout = drops.then_some(&params);
    let norm = NormParams { weight: &weight, bias: &bias, eps: 1e-12, linear_bias: Some(&linear) };
    let out = match kernels {
        Some(kernels) => kernels.residual_norm(&x, &residual, &norm, dropout),
        None => {
            let x = &x + (&linear - linear.detach()).to_kind(kind);
            let sum = dropout.map_or_else(|| &x + &residual, |params| Host.dropout(&x, Some(&residual), params));
            let sum = sum.to_kind(Kind::Float);
            sum.layer_norm([shape[2]], Some(&weight), Some(&bias), 1e-12, false).to_kind(kind)
        }
    };
    (&out * values(6)).sum(Kind::Float).backward();
    [out, x.grad(), residual.grad(), of_weight, of_bias, of_linear].map(|tensor| tensor.detach())
}

#[test]
fn the_fused_kernel_matches_single_operations() {
    for shape in [[2, 5, 128], [1, 3, 768], [3, 11, 1024], [2, 1, 4], [1, 9, 132]] {
        for (kind, most) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
            for drops in [true, false] {
                let kernels = emulated();
                assert!(kernels.has_residual_norm(shape[2]));
                let (expected, found) =
                    (results(&shape, kind, drops, None), results(&shape, kind, drops, Some(&kernels)));
                for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    let difference = distance(expected, found);
                    assert!(difference < most, "{index}: {shape:?} {kind:?} {drops}: {difference:e}");
                }
            }
        }
    }
    assert!(!emulated().has_residual_norm(1028) && !emulated().has_residual_norm(6));
}

#[test]
fn frozen_parameters_get_no_gradient() {
    let kernels = emulated();
    let x = kernels.zeros(&[1, 2, 8], Kind::Float) + 1.0;
    let ((weight, of_weight), (bias, of_bias)) =
        (parameter(x.select(1, 0).squeeze()), parameter(x.select(1, 1).squeeze()));
    let weight = weight.set_requires_grad(false);
    let norm = NormParams { weight: &weight, bias: &bias, eps: 1e-5, linear_bias: None };
    kernels.residual_norm(&x, &x, &norm, None).sum(Kind::Float).backward();
    assert_eq!(Vec::<f32>::try_from(of_bias).unwrap(), [2.0; 8]);
    assert_eq!(Vec::<f32>::try_from(of_weight).unwrap(), [0.0; 8]);
}
