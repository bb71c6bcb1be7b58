//! Muon: the update of a matrix is its momentum, orthogonalized by Newton-Schulz iterations
//! (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024).
//!
//! The first moments hold the momentum. The second moments of the matrices stay zero. All ranks have the same momentum, and
//! each matrix is orthogonalized by one rank. The results are summed over the ranks, so all ranks get the same bits.

use std::collections::BTreeMap;
use std::ops::Range;

use lambert_config::run::{Muon, MuonPrecision, Optimizer as Settings};
use lambert_plan::muon::{self, MatrixStack};
use tch::{Kind, Tensor};

use super::Ranks;
use crate::error::Error;
use crate::state::{Buffer, ParamSpec, TrainState};
use crate::torch;

/// Coefficients of the polynomial of an iteration, `a X + b A X + c A A X` with `A = X X^T`.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Lower bound on the norm that a momentum is divided by.
const EPS: f64 = 1e-7;

/// Parameter that Muon updates.
struct Matrices {
    range: Range<usize>,
    stack: MatrixStack,
    decays: bool,
}

impl Matrices {
    /// Returns the matrices of a parameter, if Muon updates it.
    fn of(spec: &ParamSpec) -> Option<Self> {
        let stack = MatrixStack::new(spec.matrices, &spec.sizes()).filter(|_| !spec.is_frozen)?;
        Some(Self { range: spec.range(), stack, decays: spec.role.decays() })
    }

    /// View of the elements in a flat buffer, f32 \[matrices, rows, columns\].
    fn view(&self, buffer: &Tensor) -> Tensor {
        let MatrixStack { count, rows, columns } = self.stack;
        let elements = buffer.narrow(0, self.range.start as i64, self.range.len() as i64);
        elements.view([count as i64, rows as i64, columns as i64])
    }
}

/// True if Muon updates the parameter.
pub fn updates(spec: &ParamSpec) -> bool {
    Matrices::of(spec).is_some()
}

fn all(state: &TrainState) -> Vec<Matrices> {
    state.parameters.specs().iter().filter_map(Matrices::of).collect()
}

/// Enqueues the update of the matrices. `norm`, f64 \[\], is the L2 norm of all gradients. If it is not finite, weights and
/// momentum stay unchanged. Overwrites the gradients from the first to the last matrix. Afterwards, the gradient of a matrix is
/// its orthogonalized momentum.
///
/// # Errors
/// The device or the sum over the ranks fails.
pub fn update(
    state: &mut TrainState,
    settings: &Settings,
    learning_rate: f64,
    norm: &Tensor,
    ranks: &mut dyn Ranks,
) -> Result<(), Error> {
    let all = all(state);
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return Ok(()) };
    let owners = muon::owners(&all.iter().map(|matrices| matrices.stack).collect::<Vec<_>>(), ranks.world());
    let is_finite = torch::guard(|| {
        state.kernels().wait_snapshots();
        // False for infinity and NaN.
        let is_finite = norm.le(f64::MAX);
        let scale = clip_scale(norm, settings.clip_norm);
        for (matrices, owner) in all.iter().zip(owners) {
            let direction = momentum(state, matrices, &settings.muon, &scale, &is_finite);
            let mut gradient = matrices.view(state.buffer(Buffer::Gradients));
            match owner == ranks.rank() {
                true => gradient.copy_(&orthogonalize(&direction, &settings.muon)),
                false => drop(gradient.zero_()),
            }
        }
        is_finite
    })?;
    if ranks.world() > 1 {
        ranks.sum(state, first.range.start..last.range.end)?;
    }
    Ok(torch::guard(|| apply(state, &all, settings, learning_rate, &is_finite))?)
}

/// Factor that reduces the gradients to `clip_norm`, f32 \[\]. 0: no clipping.
fn clip_scale(norm: &Tensor, clip_norm: f64) -> Tensor {
    let scale = if clip_norm > 0.0 { (norm.reciprocal() * clip_norm).clamp_max(1.0) } else { norm.ones_like() };
    scale.to_kind(Kind::Float)
}

/// Adds the gradient to the momentum, unless the gradients are not finite. Returns the direction of the update, f32 \[matrices,
/// rows, columns\].
fn momentum(
    state: &TrainState,
    matrices: &Matrices,
    settings: &Muon,
    clip_scale: &Tensor,
    is_finite: &Tensor,
) -> Tensor {
    let gradient = matrices.view(state.buffer(Buffer::Gradients)) * clip_scale;
    let mut momentum = matrices.view(state.buffer(Buffer::First));
    let next = momentum.lerp(&gradient, 1.0 - settings.momentum);
    momentum.copy_(&next.where_self(is_finite, &momentum));
    if settings.nesterov { gradient.lerp(&momentum, settings.momentum) } else { next }
}

/// Returns approximately the nearest orthogonal matrix of each matrix of `x`, f32 \[matrices, rows, columns\]. The singular values
/// of the result are between about 0.7 and 1.2, in the data type of the iterations.
fn orthogonalize(x: &Tensor, settings: &Muon) -> Tensor {
    let kind = match settings.precision {
        MuonPrecision::Bf16 => Kind::BFloat16,
        MuonPrecision::Fp32 => Kind::Float,
    };
    let is_tall = x.size()[1] > x.size()[2];
    let turned = |x: &Tensor| if is_tall { x.transpose(1, 2) } else { x.shallow_clone() };
    let mut x = turned(&x.to_kind(kind));
    x /= x.norm_scalaropt_dim(2.0, [1, 2].as_slice(), true).clamp_min(EPS);
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..settings.iterations {
        let gram = x.bmm(&x.transpose(1, 2));
        let polynomial = gram.baddbmm(&gram, &gram, b, c);
        x = x.baddbmm(&polynomial, &x, a, 1.0);
    }
    turned(&x)
}

/// Decays the weights and subtracts the orthogonalized momentum, which is in the gradient buffer.
fn apply(state: &mut TrainState, all: &[Matrices], settings: &Settings, learning_rate: f64, is_finite: &Tensor) {
    let buffers = state.buffers();
    let mut bf16_weights = buffers.bf16_weights;
    for matrices in all {
        let MatrixStack { rows, columns, .. } = matrices.stack;
        let decay = if matrices.decays { settings.weight_decay } else { 0.0 };
        let step_size = learning_rate * settings.muon.update_scale(rows, columns);
        let mut weights = matrices.view(buffers.weights);
        let next = &weights * (1.0 - learning_rate * decay) - matrices.view(buffers.gradients) * step_size;
        weights.copy_(&next.where_self(is_finite, &weights));
        if let Some(copy) = &mut bf16_weights {
            matrices.view(copy).copy_(&weights);
        }
    }
}

/// Factor of each matrix: the norm of its update, without the learning rate, divided by the norm of its momentum. Reads the
/// gradients that [`update`] left.
pub fn step_scales(state: &TrainState, settings: &Muon) -> BTreeMap<String, f64> {
    let specs: Vec<(&ParamSpec, Matrices)> =
        state.parameters.specs().iter().filter_map(|spec| Some((spec, Matrices::of(spec)?))).collect();
    if specs.is_empty() {
        return BTreeMap::new();
    }
    let ratio = |(_, matrices): &(&ParamSpec, Matrices)| {
        let MatrixStack { rows, columns, .. } = matrices.stack;
        let norm = |buffer| state.kernels().norm(&matrices.view(state.buffer(buffer)).view([-1]));
        norm(Buffer::Gradients) / norm(Buffer::First) * settings.update_scale(rows, columns)
    };
    let ratios = state.kernels().fetch(&Tensor::stack(&specs.iter().map(ratio).collect::<Vec<_>>(), 0));
    let named = specs.iter().zip(ratios).map(|((spec, _), ratio)| (spec.name.clone(), ratio));
    named.filter(|(_, ratio)| ratio.is_finite()).collect()
}

#[cfg(test)]
mod tests;
