//! Reference implementation with plain libtorch operations. The implementation runs on any device and is slow. The
//! kernel tests use it as the baseline. Dropout, norms, digests and updates never read values from the device.

use lambert_config::run::OptimizerKind;
use tch::{Device, Kind, Tensor};

use super::{DropoutParams, Host, Kernels, OptimizerUpdate, ParamUpdate, StateBuffers, StepScale, TokenDraws, Values};

/// Plain libtorch operations on one device.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    device: Device,
}

impl Reference {
    /// Creates the kernels for `device`.
    pub fn new(device: Device) -> Self {
        Self { device }
    }
}

impl Kernels for Reference {
    fn zeros(&self, shape: &[i64], kind: Kind) -> Tensor {
        Tensor::zeros(shape, (kind, self.device))
    }

    fn upload(&self, values: Values<'_>) -> Tensor {
        Host.upload(values).to_device(self.device)
    }

    fn read(&self, tensor: &Tensor, first: usize, into: &mut [u8]) {
        Host.read(&tensor.detach().to_device(Device::Cpu), first, into);
    }

    fn write(&self, tensor: &Tensor, first: usize, bytes: &[u8]) {
        let whole = tensor.detach().to_device(Device::Cpu);
        Host.write(&whole, first, bytes);
        tensor.detach().copy_(&whole);
    }

    fn fetch(&self, numbers: &Tensor) -> Vec<f64> {
        Host.fetch(&numbers.to_device(Device::Cpu))
    }

    fn with_host_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        let mut whole = tensor.to_device(Device::Cpu);
        Host.with_host_floats(&mut whole, work);
        tensor.copy_(&whole);
    }

    fn seed(&self, seed: u64) {
        tch::manual_seed(seed as i64);
    }

    fn dropout_factors(&self, params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
        dropout_factors(params, shape)
    }

    fn sample_tokens(&self, logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
        sample_tokens(logits, draws)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        norm(values)
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        digest(values)
    }

    fn update(&self, buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
        apply_update(buffers, update)
    }
}

/// Implements [`Kernels::norm`].
pub(super) fn norm(values: &Tensor) -> Tensor {
    values.to_kind(Kind::Double).square().sum(Kind::Double).sqrt()
}

/// Implements [`Kernels::digest`].
pub(super) fn digest(values: &Tensor) -> Tensor {
    let bits = values.view_dtype(Kind::Int).to_kind(Kind::Int64).bitwise_and(u64::from(u32::MAX) as i64);
    let pairs = bits.constant_pad_nd([0, bits.numel() as i64 % 2]).view([-1, 2]);
    let words = pairs.select(1, 1) * (1_i64 << 32) + pairs.select(1, 0);
    let indices = words.ones_like().cumsum(0, Kind::Int64);
    mix(&(words + indices * STEP)).sum(Kind::Int64)
}

/// Implements [`Kernels::update`].
pub(super) fn apply_update(buffers: &mut StateBuffers<'_>, update: &OptimizerUpdate<'_>) -> Option<Tensor> {
    let mut step_sizes = Vec::new();
    let finite = (update.norm * 0.0).eq(0.0);
    let scale = match update.clip_norm {
        clip if clip > 0.0 => (update.norm.clamp_min(clip).reciprocal() * clip).to_kind(Kind::Float),
        _ => update.norm.ones_like().to_kind(Kind::Float),
    };
    for (range, constants) in &update.parameters {
        let slice_of = |buffer: &Tensor| buffer.narrow(0, range.start as i64, range.len() as i64);
        let (mut weights, mut first, mut second) =
            (slice_of(buffers.weights), slice_of(buffers.first_moments), slice_of(buffers.second_moments));
        let gradients = slice_of(buffers.gradients) * &scale;
        let new_first = &first * f64::from(constants.beta1) + &gradients * f64::from(constants.one_minus_beta1);
        let new_second =
            &second * f64::from(constants.beta2) + gradients.square() * f64::from(constants.one_minus_beta2);
        let direction = direction(constants, &new_first, &new_second) + &weights * f64::from(constants.weight_decay);
        let ratio = match constants.step_scale {
            StepScale::TrustRatio => trust_ratio(&norm(&weights), &norm(&direction), update.trust_ratio),
            StepScale::Stable => {
                let root = (&new_second * f64::from(constants.inv_bias_correction2)).sqrt();
                let relative = &gradients / root.clamp_min(f64::from(constants.eps));
                relative.to_kind(Kind::Double).square().mean(Kind::Double).sqrt().clamp_min(1.0).reciprocal()
            }
            StepScale::Fixed => update.norm.ones_like(),
        };
        let step_size = ratio.to_kind(Kind::Float) * f64::from(constants.learning_rate);
        let new_weights = &weights - direction * &step_size;
        step_sizes.push(step_size);
        for (old, new) in [(&mut first, new_first), (&mut second, new_second), (&mut weights, new_weights)] {
            let selected = new.where_self(&finite, old);
            old.copy_(&selected);
        }
    }
    if let Some(bf16_weights) = &mut buffers.bf16_weights {
        bf16_weights.copy_(buffers.weights);
    }
    let is_scaled = matches!(update.kind, OptimizerKind::Lamb | OptimizerKind::StableAdamw);
    (is_scaled && !step_sizes.is_empty()).then(|| Tensor::stack(&step_sizes, 0))
}

fn direction(constants: &ParamUpdate, first: &Tensor, second: &Tensor) -> Tensor {
    let root = (second * f64::from(constants.inv_bias_correction2)).sqrt() + f64::from(constants.eps);
    first * f64::from(constants.inv_bias_correction1) / root
}

/// LAMB trust ratio |p| / |u|, clamped to `bounds`. If either norm is 0, the ratio before clamping is 1.
fn trust_ratio(weights: &Tensor, update: &Tensor, bounds: Option<[f64; 2]>) -> Tensor {
    let none = weights.eq(0.0).bitwise_or_tensor(&update.eq(0.0));
    let ratio = weights.ones_like().where_self(&none, &(weights / update));
    bounds.map_or_else(|| ratio.shallow_clone(), |[min_ratio, max_ratio]| ratio.clamp(min_ratio, max_ratio))
}

/// Implements [`Kernels::dropout_factors`] with the random generator of lambert-dataset
/// (random.rs), in wrapping i64 arithmetic.
pub(super) fn dropout_factors(params: &DropoutParams<'_>, shape: &[i64]) -> Tensor {
    let (length, positions) = (shape[shape.len() - 1], shape[shape.len() - 2]);
    let heads = if shape.len() == 4 { shape[1] } else { 1 };
    // Integers 1 to `count`, on the device of `samples`.
    let from_one = |count: i64| {
        let ones = params.samples.narrow(0, 0, 1).expand([count], false).ones_like();
        ones.cumsum(0, Kind::Int64)
    };
    let key = params.samples.zeros_like() + params.key.bits() as i64;
    let key = with(&key, params.samples).view([-1, 1, 1]);
    let key = with(&key, &(from_one(heads) - 1).view([1, -1, 1]));
    let positions = match params.positions {
        Some(positions) => positions.view([-1, 1, 1]),
        None => (from_one(positions) - 1).view([1, 1, -1]),
    };
    let key = with(&key, &positions).unsqueeze(-1);
    let word = mix(&(key + from_one((length + 3) / 4) * STEP));
    let lane = |lane: i64| logical_right(&word, 16 * lane).bitwise_and(0xffff);
    let lanes = Tensor::stack(&[lane(0), lane(1), lane(2), lane(3)], -1);
    let kept = lanes.flatten(3, 4).narrow(3, 0, length).ge(i64::from(params.threshold)).to_kind(Kind::Float);
    (kept * f64::from(params.scale)).contiguous().view(shape)
}

/// Implements [`Kernels::sample_tokens`].
pub(super) fn sample_tokens(logits: &Tensor, draws: &TokenDraws<'_>) -> Tensor {
    let width = logits.size()[1];
    let key = draws.samples.zeros_like() + draws.key.bits() as i64;
    let key = with(&with(&key, draws.samples), draws.positions).unsqueeze(-1);
    let words = logits.select(0, 0).narrow(0, 0, (width + 1) / 2).ones_like().cumsum(0, Kind::Int64);
    let random = mix(&(key + words * STEP));
    let bits = |lane: i64| logical_right(&random, 32 * lane).bitwise_and(0xffff_ffff);
    let bits = Tensor::stack(&[bits(0), bits(1)], -1).flatten(1, 2).narrow(1, 0, width);
    let uniform = (bits.to_kind(Kind::Float) + 0.5) * (0.5_f64).powi(32);
    let noise = -(-((-uniform).log1p())).log();
    (logits.to_kind(Kind::Float) + noise).argmax(-1, false)
}

const STEP: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

fn with(key: &Tensor, value: &Tensor) -> Tensor {
    let rotated = (key * (1_i64 << 23)).bitwise_or_tensor(&logical_right(key, 41));
    mix(&rotated.bitwise_xor_tensor(&mix(&(value + STEP)))) + key
}

fn mix(value: &Tensor) -> Tensor {
    let fold = |value: &Tensor, bits: i64| value.bitwise_xor_tensor(&logical_right(value, bits));
    let value = fold(value, 30) * (0xbf58_476d_1ce4_e5b9_u64 as i64);
    let value = fold(&value, 27) * (0x94d0_49bb_1331_11eb_u64 as i64);
    fold(&value, 31)
}

/// Logical right shift.
fn logical_right(value: &Tensor, bits: i64) -> Tensor {
    let mask = (u64::MAX >> bits) as i64;
    value.bitwise_right_shift_tensor_scalar(bits).bitwise_and(mask)
}
