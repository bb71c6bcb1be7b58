//! The kernels out of plain libtorch operations: slow, the same on every kind of device, and what the hand-written ones are
//! tested against. Nothing here reads a number from the device but [`Kernels::fetch`] and [`Kernels::read`].

use lambert_config::run::OptimizerKind;
use tch::{Device, Kind, Tensor};

use super::{Buffers, Draws, Host, Kernels, Rule, Update, Values};

/// Plain libtorch operations on one device.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    device: Device,
}

impl Reference {
    /// On `device`.
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

    fn with_floats(&self, tensor: &mut Tensor, work: &mut dyn FnMut(&mut [f32])) {
        let mut whole = tensor.to_device(Device::Cpu);
        Host.with_floats(&mut whole, work);
        tensor.copy_(&whole);
    }

    fn seed(&self, seed: u64) {
        tch::manual_seed(seed as i64);
    }

    fn dropout_factors(&self, draws: &Draws<'_>, shape: &[i64]) -> Tensor {
        dropout_factors(draws, shape)
    }

    fn norm(&self, values: &Tensor) -> Tensor {
        norm(values)
    }

    fn digest(&self, values: &Tensor) -> Tensor {
        digest(values)
    }

    fn update(&self, buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor> {
        change(buffers, update)
    }
}

/// As [`Kernels::norm`].
pub(super) fn norm(values: &Tensor) -> Tensor {
    values.to_kind(Kind::Double).square().sum(Kind::Double).sqrt()
}

/// As [`Kernels::digest`].
pub(super) fn digest(values: &Tensor) -> Tensor {
    let bits = values.view_dtype(Kind::Int).to_kind(Kind::Int64).bitwise_and(u64::from(u32::MAX) as i64);
    let pairs = bits.constant_pad_nd([0, bits.numel() as i64 % 2]).view([-1, 2]);
    let words = pairs.select(1, 1) * (1_i64 << 32) + pairs.select(1, 0);
    let places = words.ones_like().cumsum(0, Kind::Int64);
    mix(&(words + places * STEP)).sum(Kind::Int64)
}

/// As [`Kernels::update`].
pub(super) fn change(buffers: &mut Buffers<'_>, update: &Update<'_>) -> Option<Tensor> {
    let mut rates = Vec::new();
    let finite = (update.norm * 0.0).eq(0.0);
    let scale = match update.clip_norm {
        clip if clip > 0.0 => (update.norm.clamp_min(clip).reciprocal() * clip).to_kind(Kind::Float),
        _ => update.norm.ones_like().to_kind(Kind::Float),
    };
    for (range, rule) in &update.parameters {
        let of = |buffer: &Tensor| buffer.narrow(0, range.start as i64, range.len() as i64);
        let (mut weights, mut first, mut second) = (of(buffers.weights), of(buffers.first), of(buffers.second));
        let gradients = of(buffers.gradients) * &scale;
        let new_first = &first * f64::from(rule.beta1) + &gradients * f64::from(rule.share1);
        let new_second = &second * f64::from(rule.beta2) + gradients.square() * f64::from(rule.share2);
        let direction = direction(rule, &new_first, &new_second) + &weights * f64::from(rule.weight_decay);
        let ratio = match (update.kind, rule.trusted) {
            (OptimizerKind::Lamb, true) => trust_ratio(&norm(&weights), &norm(&direction), update.trust_ratio),
            _ => update.norm.ones_like(),
        };
        let rate = ratio.to_kind(Kind::Float) * f64::from(rule.learning_rate);
        let new_weights = &weights - direction * &rate;
        rates.push(rate);
        for (old, new) in [(&mut first, new_first), (&mut second, new_second), (&mut weights, new_weights)] {
            let chosen = new.where_self(&finite, old);
            old.copy_(&chosen);
        }
    }
    if let Some(low) = &mut buffers.low {
        low.copy_(buffers.weights);
    }
    (update.kind == OptimizerKind::Lamb && !rates.is_empty()).then(|| Tensor::stack(&rates, 0))
}

fn direction(rule: &Rule, first: &Tensor, second: &Tensor) -> Tensor {
    let root = (second * f64::from(rule.correction2)).sqrt() + f64::from(rule.eps);
    first * f64::from(rule.correction1) / root
}

/// |p| / |u|, 1 where either is 0, within `bounds`.
fn trust_ratio(weights: &Tensor, update: &Tensor, bounds: Option<[f64; 2]>) -> Tensor {
    let none = weights.eq(0.0).bitwise_or_tensor(&update.eq(0.0));
    let ratio = weights.ones_like().where_self(&none, &(weights / update));
    bounds.map_or_else(|| ratio.shallow_clone(), |[least, most]| ratio.clamp(least, most))
}

/// As [`Kernels::dropout_factors`]: the keyed generator of lambert-dataset (random.rs) in 64-bit integers that wrap around.
pub(super) fn dropout_factors(draws: &Draws<'_>, shape: &[i64]) -> Tensor {
    let (length, width) = (shape[shape.len() - 1], shape[shape.len() - 2]);
    let heads = if shape.len() == 4 { shape[1] } else { 1 };
    // 1 to `count`, on the samples' device.
    let from_one = |count: i64| {
        let ones = draws.samples.narrow(0, 0, 1).expand([count], false).ones_like();
        ones.cumsum(0, Kind::Int64)
    };
    let key = draws.samples.zeros_like() + draws.key.bits() as i64;
    let key = with(&key, draws.samples).view([-1, 1, 1]);
    let key = with(&key, &(from_one(heads) - 1).view([1, -1, 1]));
    let key = with(&key, &(from_one(width) - 1).view([1, 1, -1])).unsqueeze(-1);
    let word = mix(&(key + from_one((length + 3) / 4) * STEP));
    let lane = |lane: i64| logical_right(&word, 16 * lane).bitwise_and(0xffff);
    let lanes = Tensor::stack(&[lane(0), lane(1), lane(2), lane(3)], -1);
    let kept = lanes.flatten(3, 4).narrow(3, 0, length).ge(i64::from(draws.dropped)).to_kind(Kind::Float);
    (kept * f64::from(draws.scale)).contiguous().view(shape)
}

const STEP: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

fn with(key: &Tensor, fact: &Tensor) -> Tensor {
    let rotated = (key * (1_i64 << 23)).bitwise_or_tensor(&logical_right(key, 41));
    mix(&rotated.bitwise_xor_tensor(&mix(&(fact + STEP)))) + key
}

fn mix(value: &Tensor) -> Tensor {
    let fold = |value: &Tensor, bits: i64| value.bitwise_xor_tensor(&logical_right(value, bits));
    let value = fold(value, 30) * (0xbf58_476d_1ce4_e5b9_u64 as i64);
    let value = fold(&value, 27) * (0x94d0_49bb_1331_11eb_u64 as i64);
    fold(&value, 31)
}

/// `value >> bits` with zeros from the left.
fn logical_right(value: &Tensor, bits: i64) -> Tensor {
    let mask = (u64::MAX >> bits) as i64;
    value.bitwise_right_shift_tensor_scalar(bits).bitwise_and(mask)
}
