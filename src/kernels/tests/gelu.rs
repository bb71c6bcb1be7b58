//! Tests of GELU with the gradient of a bias: the emulated GPU compared with libtorch.

use lambert_config::run::Activation;
use tch::Tensor;

use super::{RandomValues, emulated};
use crate::kernels::*;
use crate::torch;

/// Result, gradient of x and gradient of the bias.
fn results(shape: &[i64], kind: Kind, activation: Activation, kernels: Option<&dyn Kernels>) -> [Tensor; 3] {
    let count = shape.iter().product::<i64>() as usize;
    let values = |seed: u64| {
        let values = RandomValues::new(seed).values(&[("x", count, true)], 4.0);
        Host.upload(Values::F32(&values)).view(shape)
    };
    let x = values(1).to_kind(kind).set_requires_grad(true);
    let bias = values(2).view([-1, shape[2]]).select(0, 0).contiguous().set_requires_grad(true);
    let of_bias = bias.zeros_like() + 1.0;
    torch::set_gradient(&bias, &of_bias);
    let approximation = if activation == Activation::GeluTanh { "tanh" } else { "none" };
    let out = match kernels {
        Some(kernels) => kernels.activate(&x, activation, &bias),
        None => (&x + (&bias - bias.detach()).to_kind(kind)).gelu(approximation),
    };
    (&out * values(3).to_kind(kind)).sum(Kind::Float).backward();
    [out.detach(), x.grad(), of_bias].map(|tensor| tensor.to_kind(Kind::Float))
}

#[test]
fn the_kernel_has_the_gradients_of_single_operations() {
    for shape in [[2, 5, 128], [1, 9, 1024], [3, 11, 1028], [2, 1, 4], [1, 800, 16]] {
        for activation in [Activation::Gelu, Activation::GeluTanh] {
            for (kind, most) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
                let kernels = emulated();
                assert!(kernels.has_activation(activation, shape[2]));
                let (expected, found) =
                    (results(&shape, kind, activation, None), results(&shape, kind, activation, Some(&kernels)));
                for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    let difference = ((expected - found).abs().max() / expected.abs().max()).double_value(&[]);
                    assert!(difference < most, "{index}: {shape:?} {activation:?} {kind:?}: {difference:e}");
                }
            }
        }
    }
    assert!(!emulated().has_activation(Activation::Gelu, 6) && !emulated().has_activation(Activation::Silu, 8));
}

#[test]
fn a_frozen_bias_gets_no_gradient() {
    let kernels = emulated();
    let x = (kernels.zeros(&[1, 2, 8], Kind::Float) + 1.0).set_requires_grad(true);
    let bias = x.detach().select(1, 0).squeeze().contiguous();
    let of_bias = bias.zeros_like();
    torch::set_gradient(&bias, &of_bias);
    kernels.activate(&x, Activation::Gelu, &bias.set_requires_grad(false)).sum(Kind::Float).backward();
    assert_eq!(Vec::<f32>::try_from(of_bias).unwrap(), [0.0; 8]);
}
